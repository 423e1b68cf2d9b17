"""The story of one fault: what was seen, what was decided, and when each stage ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from onward.core.facts import FaultReport
from onward.core.words import counted, ranks_named

MOST_OTHERS = 2  # ways to fail that are named besides the first
SAME_CLOCK_S = 60.0  # a jump longer than this between two managers is another clock, not a long absence


@dataclass(frozen=True)
class Incident:
    """Open from the first fault until every rank has committed a step again."""

    number: int
    faults: tuple[FaultReport, ...]
    step: int  # the job's step when the first fault was seen
    opened_at: float  # manager's clock
    policy: str = ""
    why: tuple[str, ...] = ()
    marks: tuple[tuple[str, float], ...] = ()  # (stage, when it ended), in order
    closed_at: float | None = None
    evidence: str = ""
    lost: int | None = None  # steps that had to be done again; None: not known, as of a script without the library

    def merged(self, faults: tuple[FaultReport, ...]) -> Incident:
        return replace(self, faults=self.faults + faults)

    def decided(self, policy: str, why: str) -> Incident:
        if self.why and self.why[-1] == why and self.policy == policy:
            return self
        return replace(self, policy=policy, why=(*self.why, why))

    def marked(self, stage: str, now: float) -> Incident:
        """Record that `stage` ended. A stage that is gone through again keeps its last end."""
        kept = tuple(m for m in self.marks if m[0] != stage)
        return replace(self, marks=(*kept, (stage, now)))

    def rebased(self, now: float) -> Incident:
        """As a new manager goes on with it. On another machine its clock has nothing to do with the old one."""
        last = max([self.opened_at, *(at for _, at in self.marks)])
        if last <= now < last + SAME_CLOCK_S:
            return self
        marks = tuple((stage, at - last + now) for stage, at in self.marks)
        return replace(self, opened_at=self.opened_at - last + now, marks=marks)

    def closed(self, now: float) -> Incident:
        return replace(self.marked("resume", now), closed_at=now)

    def given_up(self, now: float) -> Incident:
        """Nothing cured it."""
        return replace(self.marked("end", now), closed_at=now)

    @property
    def mended(self) -> bool:
        """It is over, and the job goes on."""
        return any(stage == "resume" for stage, _ in self.marks)

    def in_short(self) -> Incident:
        """Without what is long."""
        return replace(self, evidence="", faults=tuple(replace(f, traceback="") for f in self.faults))

    def timeline_ms(self) -> list[tuple[str, float]]:
        """How long each stage took."""
        out, last = [], self.opened_at
        for stage, at in sorted(self.marks, key=lambda m: m[1]):
            out.append((stage, (at - last) * 1000.0))
            last = at
        return out

    @property
    def total_ms(self) -> float:
        end = self.closed_at if self.closed_at is not None else (self.marks[-1][1] if self.marks else self.opened_at)
        return (end - self.opened_at) * 1000.0

    @property
    def root_cause(self) -> FaultReport:
        """The first fault that is not an echo: when a rank dies its peers report broken connections, perhaps sooner."""
        return next((f for f in self.faults if f.retryable != "communication"), self.faults[0])

    def headline(self) -> str:
        """Who failed, and how; of the others each by its first fault, and who failed alike together."""
        root = self.root_cause
        alike: dict[str, set[int]] = {describe(root): {root.rank}}
        for f in self.faults:
            if f.retryable != "communication" and not any(f.rank in ranks for ranks in alike.values()):
                alike.setdefault(describe(f), set()).add(f.rank)
        (how, first), *others = alike.items()
        parts = [f"rank {root.rank} {how}"]
        parts += [f"{ranks_named(first - {root.rank})} too"] if len(first) > 1 else []
        parts += [f"{ranks_named(ranks)} {text}" for text, ranks in others[:MOST_OTHERS]]
        left = sum(len(ranks) for _, ranks in others[MOST_OTHERS:])
        parts += [f"{counted(left, 'more rank')}"] if left else []
        return ", and ".join(parts)


_SOURCE_FILE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|cu|h):\d+\] *")  # how gloo and NCCL begin their messages


def _in_short(text: str) -> str:
    last = text.partition("Last error:\n")[2]  # where NCCL says what it is; what stands before is the same for all
    first = next(iter((last or text).splitlines()), "")
    return _SOURCE_FILE.sub("", first)[:80].strip(" :") or "no text"


def describe(fault: FaultReport) -> str:
    """The fault in a few words."""
    match fault.kind:
        case "signal":
            return f"killed ({fault.text})"
        case "exit" if fault.early:
            return f"ended its script before the others ({fault.text})"
        case "exit" if fault.inside:
            return "ended its script in a step that did not count"
        case "exit":
            return f"exited ({fault.text})"
        case "hang":
            return "hung"
        case "node":
            return f"lost with {fault.text}"
        case "start":
            return fault.text
        case "switch":
            return f"is on a node that is worse than it should be ({fault.text})"
        case "join":
            return f"joins again ({fault.text})"
        case "retry" | "restart":
            return f"has a published fault ({_in_short(fault.text)})"
        case "stall":
            return "and all others stalled"
        case "untold":
            return f"cannot go on where it was: {fault.text}"
        case "exception":
            what = "a retryable error" if fault.retryable else "an error"
            return f"raised {what} ({_in_short(fault.text)})"
        case other:
            return f"{other}: {fault.text[:80]}"
