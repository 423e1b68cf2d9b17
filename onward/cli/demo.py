"""`onward demo`: train a small GPT twice, once undisturbed and once with three faults, and compare what came out.

Every sentence of the verdict is a claim that was checked; one that does not hold makes the demo fail.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onward
from onward.agent.chaos import parse_chaos
from onward.agent.observer import Outcome
from onward.cli.banner import banner
from onward.cli.flags import parse_run
from onward.cli.run import run_job
from onward.cli.screen import Screen, make_screen
from onward.cli.story import headline, timeline
from onward.core.incident import Incident
from onward.core.words import counted
from onward.errors import OnwardError, UsageError

RANKS = 4
STEPS = 100  # of a run: some ten seconds on two cores, enough for the loss to fall and for spares to be ready
QUICK_STEPS = 40
QUICK_MODEL = ("--layers", "1", "--embd", "32", "--heads", "2", "--block", "32", "--batch", "8")
ECC_TEXT = "injected: uncorrectable ECC error"  # one of those that devices/ knows to be cured by a retry


@dataclass(frozen=True)
class Fault:
    """One fault of the show: what is done to whom, and by what the incident is recognised."""

    rank: int
    kind: str  # as in --chaos
    shows_as: str  # kind of the fault report
    part: float  # of the run, when it happens
    replaced: bool  # the rank gets a new process
    text: str = ""

    def spec(self, steps: int) -> str:
        text = f",text={self.text}" if self.text else ""
        return f"kind={self.kind},rank={self.rank},step={self.step(steps)}{text}"

    def step(self, steps: int) -> int:
        return int(steps * self.part)

    def caused(self, incident: Incident) -> bool:
        root = incident.root_cause
        return root.rank == self.rank and root.kind == self.shows_as and self.text in root.text


FAULTS = (
    Fault(rank=1, kind="kill", shows_as="signal", part=0.40, replaced=True),
    Fault(rank=2, kind="exception", shows_as="exception", part=0.60, replaced=False, text=ECC_TEXT),
    Fault(rank=3, kind="stop", shows_as="hang", part=0.78, replaced=True),
)


@dataclass(frozen=True)
class Claim:
    holds: bool
    text: str


def demo(quick: bool, view: str) -> int:
    """The whole show; 0 when every claim held."""
    examples = find_examples()
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demo needs PyTorch: pip install torch (the CPU build is enough), or use make demo")
    with tempfile.TemporaryDirectory(prefix="onward-demo-") as folder, _screen(view) as screen:
        show = _Show(examples, Path(folder), screen, QUICK_MODEL if quick else ())
        try:
            steps = QUICK_STEPS if quick else STEPS
            reference, faulty = show.reference(steps), show.faulty(steps)
        except _Stopped as e:
            print(f"onward: {e}", file=sys.stderr, flush=True)
            return e.exit_code
        screen.note("comparing the final states with examples/digest.py")
        verdict = compare(examples, show.state("reference"), show.state("faulty"))
        screen.close()
        claims = check(reference, faulty, steps, verdict)
        print(story(reference, faulty, claims, verdict), flush=True)
    return 0 if all(claim.holds for claim in claims) else 1


def find_examples() -> Path:
    """The folder with gpt.py: next to the package in a checkout, where pip put it, or below the current directory."""
    package, installed = Path(onward.__file__).parent, Path(sys.prefix) / "share/onward/examples"
    for folder in (package.parent / "examples", installed, Path.cwd() / "examples"):
        if (folder / "gpt.py").is_file() and (folder / "digest.py").is_file():
            return folder
    raise UsageError(
        f"the demo trains examples/gpt.py, which is not in this installation (looked for in {installed}); "
        "run it in a checkout of onward, with: make demo"
    )


@contextmanager
def _screen(view: str) -> Iterator[Screen]:
    screen = make_screen(view, quiet=False, json=False, epilogue=False)
    try:
        yield screen
    finally:
        screen.close()


class _Stopped(OnwardError):
    """A run of the demo did not get to its end."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class _Show:
    """The runs of the demo."""

    def __init__(self, examples: Path, folder: Path, screen: Screen, model: tuple[str, ...]) -> None:
        self._script = str(examples / "gpt.py")
        self._folder = folder
        self._screen = screen
        self._model = model

    def state(self, name: str) -> Path:
        return self._folder / name

    def reference(self, steps: int) -> Outcome:
        return self._run(f"1/2 without faults, {steps} steps", steps, "reference", ("--spares", "none"))

    def faulty(self, steps: int) -> Outcome:
        planned = ", ".join(f"{fault.kind} rank {fault.rank} at step {fault.step(steps)}" for fault in FAULTS)
        chaos = [word for fault in FAULTS for word in ("--chaos", fault.spec(steps))]
        return self._run(f"2/2 with faults: {planned}", steps, "faulty", ("--spares", "each", *chaos))

    def _run(self, title: str, steps: int, name: str, flags: tuple[str, ...]) -> Outcome:
        words = ["--nproc-per-node", str(RANKS), "--job-name", f"demo-{name}", *flags, self._script]
        words += [*self._model, "--steps", str(steps), "--digest", str(self.state(name))]
        settings = parse_run(words, {"PATH": os.environ.get("PATH", "")})
        self._screen.begin(title)
        outcome = run_job(settings, parse_chaos(settings.chaos, RANKS), self._screen)
        if outcome.exit_code != 0:
            self._screen.close()
            if outcome.root_cause is not None:
                print(banner(outcome), file=sys.stderr, flush=True)
            text = f"{title}: {outcome.phase}, so there is nothing to compare; logs in {outcome.log_dir}"
            raise _Stopped(text, outcome.exit_code)
        return outcome


# ---------------------------------------------------------------------------------------------------- the verdict


@dataclass(frozen=True)
class Verdict:
    """What examples/digest.py says about two final states. It shares no code with onward."""

    equal: bool
    digests: dict[int, str]  # by rank, of the run with faults
    text: str


def compare(examples: Path, first: Path, second: Path) -> Verdict:
    command = [sys.executable, str(examples / "digest.py"), str(first), str(second)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    rows = [line.split(maxsplit=3) for line in lines if line.startswith("rank ")]
    digests = {int(row[1]): row[2] for row in rows if len(row) == 4 and row[3] == str(second)}
    last = (lines or done.stderr.splitlines() or ["no answer"])[-1]
    return Verdict(done.returncode == 0 and last == "EQUAL" and len(digests) == RANKS, digests, last)


def check(reference: Outcome, faulty: Outcome, steps: int, verdict: Verdict) -> list[Claim]:
    """Everything the demo promises, each with what was found."""
    claims = [_check_fault(fault, faulty) for fault in FAULTS]
    complete = reference.steps == faulty.steps == steps
    claims.append(Claim(complete, f"both runs made {steps} steps ({reference.steps} and {faulty.steps})"))
    claims.append(Claim(faulty.steps_lost == 0, f"{counted(faulty.steps_lost, 'step')} lost"))
    kept = [r for r in range(RANKS) if not any(f.rank == r and f.replaced for f in FAULTS)]
    unchanged = [r for r in kept if len(faulty.pids.get(r, ())) == 1]
    pids = ", ".join(f"rank {r}: {'→'.join(map(str, faulty.pids.get(r, ())))}" for r in range(RANKS))
    claims.append(Claim(unchanged == kept, f"{len(unchanged)} of {len(kept)} surviving PIDs unchanged ({pids})"))
    claims.append(Claim(verdict.equal, f"final state of both runs, SHA-256 of each rank: {verdict.text}"))
    return claims


def _check_fault(fault: Fault, outcome: Outcome) -> Claim:
    """It really happened, and it was healed."""
    name = f"{fault.kind} rank {fault.rank}"
    proved = [f for f in outcome.chaos if f.kind == fault.kind and f.rank == fault.rank and f.proof]
    healed = [i for i in outcome.incidents if fault.caused(i) and i.closed_at is not None]
    if not proved:
        return Claim(False, f"{name}: nobody saw it happen")
    if not healed:
        return Claim(False, f"{name}: {proved[0].proof}; but there was no incident that healed it")
    since_fault_ms = ((healed[0].closed_at or 0.0) - proved[0].at) * 1000.0
    return Claim(True, f"{name}: {proved[0].proof}; training again after {since_fault_ms:.0f} ms")


def story(reference: Outcome, faulty: Outcome, claims: list[Claim], verdict: Verdict) -> str:
    """The summary that ends the demo."""
    lines = ["", "Incidents"]
    for i in faulty.incidents:
        lines += [f"  {i.number}  {headline(i)}", f"     {i.total_ms:.0f} ms  =  {timeline(i)}   ({i.policy})"]
    lines += ["", "Claims"]
    lines += [f"  {'ok  ' if claim.holds else 'FAIL'}  {claim.text}" for claim in claims]
    lines += [f"        rank {rank}  {digest}" for rank, digest in sorted(verdict.digests.items())]
    times = f"{reference.elapsed_s:.1f} s without faults, {faulty.elapsed_s:.1f} s with {len(FAULTS)}"
    lines += ["", f"Goodput {faulty.goodput:.1%}, {counted(faulty.steps_lost, 'step')} lost; {times}."]
    failed = sum(not claim.holds for claim in claims)
    bad = f"{counted(failed, 'claim')} did not hold; logs in {faulty.log_dir}"
    lines.append(bad if failed else "Every claim held.")
    return "\n".join(lines)
