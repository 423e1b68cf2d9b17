"""The fault matrix: kinds x moments x ladders, with real processes.

A story is one job that is struck again and again; a cell is one of these faults. Every cell must have fired, be put
down to the right rank and be cured by the right policy; at the end of a story nobody was restarted who need not be, no
step was lost, and the state is bit for bit that of a run without faults.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from again import nightly

pytestmark = pytest.mark.torch
SCRIPT, STEPS = "examples/ddp_min.py", ("--steps", "150")
IN_PLACE, RETRY = "recover-in-place", "retry"
MOMENTS = ("begin", "forward", "collective", "optimizer", "end")
LOST = ("", ",lose=journal")


@dataclass(frozen=True)
class Cell:
    """One fault, as given to the injector, and what is to be said of it afterwards."""

    kind: str
    rank: int
    step: int
    at: str
    policy: str
    text: str  # part of the fault as reported
    more: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-rank{self.rank}-step{self.step}-{self.at}"

    @property
    def spec(self) -> str:
        return f"kind={self.kind},rank={self.rank},step={self.step},at={self.at}{self.more}"


@dataclass(frozen=True)
class Story:
    cells: tuple[Cell, ...]
    also: tuple[str, ...] = ()  # faults of our own processes
    flags: tuple[str, ...] = ()


SAID = {
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "abort": "SIGABRT",
    "exit-code": "exit code 7",
    "bug": "ValueError",
    "oom": "MemoryError",
    "exception": "Connection reset by peer",
    "drop-connections": "onnection",
}  # part of the fault as reported; of a hang it is the rank


def cells(table: str, policy: str = "") -> tuple[Cell, ...]:
    """A cell a line: kind, rank, step, moment; then what else is given to the injector, and what is said of it."""
    found = []
    for line in filter(None, map(str.strip, table.splitlines())):
        kind, rank, step, at, *rest = line.split(maxsplit=4)
        more, _, text = rest[0].partition(" -> ") if rest else ("", "", "")
        cure = policy or (RETRY if kind in ("exception", "drop-connections") else IN_PLACE)
        said = text or SAID.get(kind, f"rank {rank}")
        found.append(Cell(kind, int(rank), int(step), at, cure, said, more and f",{more}"))
    return tuple(found)


STORIES = {
    # From step 124 on: steps are light right after a recovery, and nothing is copied aside that the next fault could
    # go back to.
    "deaths": Story(
        cells(
            """
            kill              0    0  optimizer
            kill              1    1  optimizer
            kill              2   14  begin
            kill              3   26  forward
            kill              0   38  collective
            kill              1   50  end
            segv              2   62  collective
            abort             3   74  optimizer
            exit-code         0   86  forward     code=7
            bug               1   98  collective
            oom               2  110  forward
            kill              2  124  collective
            kill              0  125  collective
            kill              3  136  optimizer
            kill              1  137  optimizer
            kill              0  149  optimizer
            """
        )
    ),
    "errors": Story(
        cells(
            """
            exception         0   12  begin
            exception         1   22  forward
            exception         2   32  collective
            exception         3   42  optimizer
            exception         0   52  end
            exception         1   62  forward     text=CUDA error: uncorrectable ECC error encountered -> ECC
            bug               2   72  collective  text=the frobnicator is warm -> frobnicator
            drop-connections  3   82  collective
            exception         0   92  collective
            exception         1   93  optimizer
            """,
            policy=RETRY,
        ),
        flags=("--retry-on", "frobnicator is \\w+"),
    ),
    "hangs": Story(
        cells(
            """
            stop              1   12  begin
            stop              0   30  optimizer
            sleep-hang        2   48  forward
            gil-hang          3   66  collective
            endless-loop      0   84  end
            skip-collective   1  102  collective
            """
        ),
        flags=("--hang-floor", "2.5"),
    ),
    "no spares, no retry": Story(
        cells(
            """
            kill              3   12  begin
            kill              2   26  forward
            kill              1   40  collective
            kill              0   54  optimizer
            segv              3   68  end
            stop              2   82  forward
            """
        ),
        flags=("--spares", "none", "--recover-strategy", "recover-in-place,exit", "--hang-floor", "2.5"),
    ),
    "our own processes": Story(
        cells(
            """
            kill              2   20  collective
            kill              1   50  optimizer
            kill              0   80  forward
            kill              3  110  collective
            """
        ),
        also=(
            "kind=kill-manager,step=8",
            "kind=kill-manager,step=35",
            "kind=kill-warm-parent,step=45",
            "kind=kill-spares,step=75",
            "kind=kill-manager,step=105,when=recovery",
        ),
    ),
    "the manager after every record": Story(
        (
            *(Cell("kill", n % 4, 14 * n, MOMENTS[n % 5], IN_PLACE, "SIGKILL") for n in range(1, 7)),
            *(Cell("exception", n % 4, 98 + 10 * n, MOMENTS[n % 5], RETRY, "Connection reset") for n in range(1, 6)),
        ),
        also=(
            *(f"kind=kill-manager,step={14 * n - 9},appends={n}{LOST[n % 2]}" for n in range(1, 7)),
            *(f"kind=kill-manager,step={90 + 10 * n},appends={n}{LOST[n % 2]}" for n in range(1, 6)),
        ),
    ),
    "two at once": Story(
        cells(
            """
            kill              1   20  collective
            kill              2   20  collective
            kill              0   60  optimizer
            exception         3   90  optimizer
            exception         1   90  forward
            kill              1  120  end
            kill              3  120  begin
            """
        )
    ),
}
LONG = ("the manager after every record",)
MARKS = {name: pytest.mark.nightly if name in LONG else () for name in STORIES}
CELLS = [
    pytest.param(name, cell, id=f"{name}: {cell}", marks=MARKS[name])
    for name, story in STORIES.items()
    for cell in story.cells
]


@pytest.fixture(scope="module")
def told(jobs, request):
    """The jobs of the stories that are asked for, each run once, two at a time: a busy machine is no excuse."""

    def run(story: Story) -> Any:
        chaos = [*(c.spec for c in story.cells), *story.also]
        return jobs.run(SCRIPT, *STEPS, chaos=chaos, flags=list(story.flags))

    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {params["name"] for params in chosen if params.get("name") in STORIES}
    results: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:

        def tell(name: str) -> Any:
            for each in {name, *wanted} - {*results}:
                results[each] = pool.submit(run, STORIES[each])
            return results[name].result()

        yield tell


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in STORIES])
def test_story(jobs, told, name):
    result, story = told(name), STORIES[name]
    assert result.code == 0, result.err[-3000:]
    assert result.outcome["outcome"] == "Succeeded"
    assert result.outcome["steps"] == 150
    assert result.outcome["steps_lost"] == 0
    replaced = Counter(c.rank for c in story.cells if c.policy == IN_PLACE)
    assert [len(result.pids(r)) for r in range(4)] == [1 + replaced[r] for r in range(4)], result.incidents
    assert len(result.outcome["chaos"]) == len(story.cells) + len(story.also)
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_cell(told, name, cell):
    result = told(name)
    fired = [c for c in result.outcome["chaos"] if (c["kind"], c["rank"]) == (cell.kind, cell.rank)]
    proofs = [c["proof"] for c in fired if c["step"] in (cell.step, cell.step + 1)]
    assert proofs, f"it has not fired: {fired}"
    assert all(proofs), "that it has fired must be proved by somebody else"
    steps = (cell.step, cell.step + 1)
    ranks = range(4) if cell.kind == "drop-connections" else (cell.rank,)  # a connection has two ends, both see it
    found = [i for i in result.incidents if any(f["rank"] in ranks and f["step"] in steps for f in i["faults"])]
    assert found, [i["headline"] for i in result.incidents]
    assert found[-1]["policy"] == cell.policy
    texts = [f["text"] for i in found for f in i["faults"] if f["rank"] in ranks]
    assert any(cell.text in text for text in texts), texts
    if cell.policy == IN_PLACE:
        assert any(f"rank {cell.rank}" in i["headline"] for i in found), "the guilty one is in the headline"


def test_a_hung_rank_is_found_and_named(told):
    for cell in STORIES["hangs"].cells:
        hangs = [i for i in told("hangs").incidents if any(f["kind"] == "hang" for f in i["faults"])]
        own = [i for i in hangs if f"rank {cell.rank}" in i["headline"]]
        assert own, f"{cell}: {[i['headline'] for i in hangs]}"
        evidence = own[0]["evidence"]
        assert "by py-spy" in evidence or "by /proc" in evidence, "the guilty rank's stacks belong to the incident"


def test_damaged_memory_is_repaired_from_a_replica(told):
    whys = [why for i in told("errors").incidents for why in i["why"] if "ECC" in i["headline"]]
    assert any("state for rank 1" in why for why in whys), whys


def test_a_second_rank_while_the_first_is_being_replaced(jobs):
    faults = ["kind=kill,rank=1,step=20", "kind=during-recovery,rank=3"]
    result = jobs.run(SCRIPT, *STEPS, chaos=faults, flags=["--spares", "none"])
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in range(4)] == [1, 2, 1, 2], result.incidents
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


def test_again_when_the_step_is_redone(jobs):
    def again(step: int, moment: str) -> list[str]:
        one = f"rank=1,step={step},at={moment}"
        return [f"kind=exception,{one}", f"kind=exception,{one}", f"kind=kill,{one}"]

    faults = [*again(20, "collective"), *again(50, "optimizer"), *again(80, "end")]
    result = jobs.run(SCRIPT, *STEPS, chaos=faults)
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in range(4)] == [1, 4, 1, 1], result.incidents
    assert len(result.outcome["chaos"]) == 9
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


@pytest.mark.parametrize("moment", nightly("begin", "forward", "collective", "optimizer", "end"))
@pytest.mark.parametrize("rank", [0, 3])
def test_one_death_in_a_job(jobs, moment, rank):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind=kill,rank={rank},step=20,at={moment}"], flags=["--spares", "each"])
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in range(4)] == [1 + (r == rank) for r in range(4)]
    assert result.policies() == [IN_PLACE]
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


@pytest.mark.nightly
def test_a_cold_start_is_enough(jobs):
    result = jobs.run(SCRIPT, *STEPS, chaos=["kind=kill,rank=1,step=20"], flags=["--no-warm"])
    assert result.code == 0, result.err[-3000:]
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


def test_the_users_own_bug_surfaces_with_its_traceback(jobs):
    bug = "kind=bug,rank=1,step=20,text=shapes do not match"
    result = jobs.run(SCRIPT, *STEPS, nproc=2, chaos=[bug, bug])
    assert result.code == 1
    assert result.outcome["outcome"] == "Failed"
    assert "shapes do not match" in result.outcome["root_cause"]["error"]
    assert "Traceback" in result.outcome["root_cause"]["traceback"]
    assert len(result.incidents) <= 2


def test_the_digest_sees_a_single_changed_value(jobs, tmp_path):
    import shutil
    from pathlib import Path

    import torch

    reference = jobs.reference(SCRIPT, *STEPS)
    for rank in range(4):
        shutil.copy(f"{reference.digest}.{rank}.pt", tmp_path / f"changed.{rank}.pt")
    path = tmp_path / "changed.2.pt"
    state = torch.load(path, weights_only=False)
    first = next(iter(state["model"].values())).view(-1)
    first[0] = torch.nextafter(first[0], torch.tensor(10.0))
    torch.save(state, path)
    changed = type(reference)(0, "", "", {}, str(Path(tmp_path) / "changed"))
    with pytest.raises(AssertionError, match="DIFFERENT: rank 2"):
        jobs.same_state(reference, changed)
