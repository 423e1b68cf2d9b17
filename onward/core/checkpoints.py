"""What is saved, what may be published, and from where a job begins: checkpoints, as decisions.

A checkpoint is made of parts, one from each node (its ranks' local state, and from one node the shared state). Parts
are written under a name that nobody loads. They become a checkpoint when the manager grants it, and it grants only what
every node has written in the generation that is current: a node that was cut off, or one of an older generation,
publishes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onward.core.words import ranks_named


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
    ranks: tuple[int, ...]  # whose local state is


@dataclass(frozen=True)
class Grant:
    """Leave to publish: `node` puts the parts together under the checkpoint's own name."""

    node: int
    step: int
    generation: int
    files: tuple[SavedFile, ...]


def publishable(parts: Mapping[int, Sequence[SavePart]], generation: int, members: Iterable[int]) -> Grant | None:
    """The newest step of which all parts have been written in the current generation.

    That is one part from every node, except where another has kept the local state of a node that is lost. Ranks that
    the job goes on without have no part in it.
    """
    here = [(node, part) for node, found in parts.items() for part in found if part.generation == generation]
    if not here:
        return None
    wanted = set(members)
    for step in sorted({part.step for _, part in here}, reverse=True):
        chosen = {node: part for node, part in here if part.step == step}
        with_shared = [node for node, part in sorted(chosen.items()) if part.shared]
        ranks = {rank for part in chosen.values() for rank in part.ranks}
        if with_shared and ranks >= wanted:
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
            return -1, "starting from the beginning"
        lacking = sorted(rank for rank, steps in loadable.items() if not steps) or sorted(loadable)
        why = f"no checkpoint can be loaded by every rank (not by {ranks_named(lacking)})"
        return -1, f"starting from the beginning: {why}"
    step = max(common)
    why = f": that of step {newest} cannot be loaded by every rank" if newest > step else ""
    return step, f"resuming from the checkpoint of step {step}{why}"
