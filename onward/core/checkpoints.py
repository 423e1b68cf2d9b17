"""What is saved, what may be published, and from where a job begins: checkpoints, as decisions.

A checkpoint is made of parts, one from each node (its ranks' local state, and from one node the shared state). Parts
are written under a name that nobody loads. They become a checkpoint when the manager grants it, and it grants only what
every node has written in the generation that is current: a node that was cut off, or one of an older generation,
publishes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint, as its writer knows it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class SavePart:
    """What one node has written of one checkpoint."""

    step: int
    generation: int
    shared: bool  # the shared state is among the files
    files: tuple[SavedFile, ...]


@dataclass(frozen=True)
class Grant:
    """Leave to publish: `node` puts the parts together under the checkpoint's own name."""

    node: int
    step: int
    generation: int
    files: tuple[SavedFile, ...]


def publishable(parts: Mapping[int, Sequence[SavePart]], generation: int, nodes: int) -> Grant | None:
    """The newest step of which every node has written its part in the current generation."""
    here = {node: {p.step: p for p in found if p.generation == generation} for node, found in parts.items()}
    if len(here) < nodes:
        return None
    common = set.intersection(*(set(by_step) for by_step in here.values())) if here else set()
    for step in sorted(common, reverse=True):
        chosen = {node: by_step[step] for node, by_step in here.items()}
        with_shared = [node for node, part in sorted(chosen.items()) if part.shared]
        if with_shared:
            files: dict[str, SavedFile] = {}
            for node in sorted(chosen, reverse=True):  # should two have written one file, the publisher's counts
                files |= {f.name: f for f in chosen[node].files}
            return Grant(with_shared[0], step, generation, tuple(files[name] for name in sorted(files)))
    return None


def choose_start(loadable: Mapping[int, Sequence[int]], partly: Mapping[int, Sequence[int]]) -> tuple[int, str]:
    """The newest step that every rank can have, -1 for none, and why.

    A rank that has only its local state of a step (`partly`) is given the shared state by one that can load it.
    """
    whole = {step for steps in loadable.values() for step in steps}
    each = [{*steps, *partly.get(rank, ())} for rank, steps in loadable.items()]
    common = set.intersection(whole, *each)
    newest = max((max(steps) for steps in loadable.values() if steps), default=-1)
    if not common:
        if newest < 0:
            return -1, ""
        lacking = sorted(rank for rank, steps in loadable.items() if not steps) or sorted(loadable)
        ranks = ", ".join(map(str, lacking))
        return -1, f"beginning afresh: no checkpoint can be loaded by every rank (not by rank {ranks})"
    step = max(common)
    if newest > step:
        return step, f"resuming at step {step}: step {newest} cannot be loaded by every rank"
    return step, f"resuming at step {step}"
