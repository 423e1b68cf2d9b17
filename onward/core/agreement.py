"""Which step everybody goes on from after a pause, and who gives state to whom.

After a fault ranks can differ by one step: some had applied the update when the groups broke. Going on without
agreeing mixes gradients of different steps, silently. The furthest step wins for which a complete clean copy survives
and every rank that lacks it can be given it: shared state from a copy, local state from what that rank had published.
What it had published before the end of a light step is not that, where the step did not end as light steps do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from onward.core.words import ranks_named


class Part(str, Enum):
    """What a rank does to arrive at the agreed step."""

    KEEP = "keep"
    UNDO = "undo"
    RECEIVE = "receive"
    LOAD = "load"  # from a checkpoint, or from the copy in its node's memory


@dataclass(frozen=True)
class Copy:
    """What one rank holds. `step` is None for a process that holds nothing yet."""

    rank: int
    step: int | None
    clean: bool
    undo: bool
    local_steps: tuple[int, ...]
    fresh: bool = False  # it joins with no past of its own, so any step will do
    light: int = 0  # see RankFacts
    joined: str = ""  # likewise
    withheld: str = ""  # likewise
    early: tuple[int, ...] = ()  # likewise


@dataclass(frozen=True)
class Agreement:
    step: int
    parts: dict[int, Part]
    sources: tuple[int, ...]
    why: str
    light: int = 0  # steps go on being light, with this shape; 0: everybody is careful
    joined: str = ""  # the group that all of them have connected beforehand, if there is one


@dataclass(frozen=True)
class NoAgreement:
    why: str


def agree(copies: Sequence[Copy]) -> Agreement | NoAgreement:
    """The furthest step that all can reach, or a sentence that says why there is none."""
    steps = {c.step for c in copies if c.step is not None and c.clean}
    steps |= {c.step - 1 for c in copies if c.step is not None and c.undo and c.step > 0}
    if not steps:
        return NoAgreement("no complete copy of the state is left")
    reasons = []
    for step in sorted(steps, reverse=True):
        parts: dict[int, Part] = {}
        missing = []
        odd = any(c.step == step and c.clean and not c.light for c in copies)
        for c in copies:
            if c.step == step and c.clean:
                parts[c.rank] = Part.KEEP
            elif c.undo and c.step is not None and c.step - 1 == step:
                parts[c.rank] = Part.UNDO
            elif c.fresh or (step in c.local_steps and not (odd and step in c.early)):
                parts[c.rank] = Part.RECEIVE
            else:
                missing.append(c.rank)
        if missing:
            reasons.append(f"step {step}: the local state of {ranks_named(missing)} was not safe")
            continue
        holders = [c for c in copies if parts[c.rank] is not Part.RECEIVE]
        if not holders:
            reasons.append(f"step {step}: no copy")
            continue
        sources = tuple(c.rank for c in holders if not c.withheld)
        if not sources and len(holders) < len(copies):
            reasons.append(f"step {step}: nobody can be given the state, {holders[0].withheld}")
            continue
        sources = sources or tuple(c.rank for c in holders)
        why, joined = _explain(step, parts, sources), _common_group(copies)
        if joined:
            why += "; the new group is connected already"
        return Agreement(step, parts, sources, why, _common_shape(copies), joined)
    return NoAgreement("; ".join(reasons))


def _common_shape(copies: Sequence[Copy]) -> int:
    """The shape of a step that all who have run steps know, and so can tell the others; 0 when they differ."""
    shapes = {c.light for c in copies if c.step is not None}
    return shapes.pop() if len(shapes) == 1 else 0


def _common_group(copies: Sequence[Copy]) -> str:
    """A group is there when every process that is to be in it has connected it. One that came later has not."""
    names = {c.joined for c in copies}
    return names.pop() if len(names) == 1 else ""


def _explain(step: int, parts: dict[int, Part], sources: tuple[int, ...]) -> str:
    receivers = [r for r, part in parts.items() if part is Part.RECEIVE]
    undone = [r for r, part in parts.items() if part is Part.UNDO]
    text = f"going on at step {step}"
    if receivers:
        text += f"; state for {ranks_named(receivers)} from rank {sources[0]}"
    if undone:
        text += f"; the unfinished step of {ranks_named(undone)} is taken back"
    return text

