"""The agent's part in checkpoints, without any I/O: when all its ranks have copied a step, it is written; when the
manager grants it, it is published. See `core.checkpoints` for why in two moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from onward.core.checkpoints import Grant, SavedFile, SavePart
from onward.wire.messages import Copied, Orders, Plan, Save


@dataclass(frozen=True)
class UseDirectory:
    """The process asks whether checkpoints can go there; answer its request `plan.id`."""

    process: int
    plan: Plan


@dataclass(frozen=True)
class WriteCheckpoint:
    """Write this node's part of `step`, under a name that nobody loads."""

    step: int
    generation: int
    reason: str
    ranks: tuple[int, ...]
    shared: bool
    save: Save | None = None  # from the fence: local state is to be taken from the ranks' slots first
    disk: bool = True


@dataclass(frozen=True)
class PublishCheckpoint:
    grant: Grant
    reason: str
    torch: str


@dataclass(frozen=True)
class DropPart:
    """What was written of this step will not be published."""

    step: int
    generation: int


SavingEffect = UseDirectory | WriteCheckpoint | PublishCheckpoint | DropPart


class Saving:
    """Follows one save at a time; the newest step wins."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks
        self.plan: Plan | None = None
        self.torch = ""
        self.parts: tuple[SavePart, ...] = ()  # at most one: written, not yet published
        self.published: tuple[int, ...] = ()
        self.error = ""
        self._reason = "periodic"
        self._copied: dict[tuple[int, int], dict[int, bool]] = {}  # (step, generation) -> rank -> with shared state
        self._writing: tuple[int, int] | None = None
        self._publishing: Grant | None = None
        self._asked: tuple[int, int, bool] | None = None  # what was last ordered from the fence, and acted on

    # ------------------------------------------------------------------------------------------ ranks

    def on_plan(self, process: int, plan: Plan) -> list[SavingEffect]:
        self.plan = plan
        return [UseDirectory(process, plan)]

    def on_copied(self, rank: int, copied: Copied, orders: Orders | None) -> list[SavingEffect]:
        """A rank's part is in memory."""
        if orders is None or copied.generation != orders.generation:
            return []
        self.torch = copied.torch or self.torch
        key = (copied.step, copied.generation)
        if orders.save is not None:
            if copied.error:
                self.error = copied.error
                return []
            return self._write_from_fence(orders, orders.save, shared=copied.shared)
        self._copied = {k: v for k, v in self._copied.items() if k[0] >= copied.step and k[1] == copied.generation}
        here = self._copied.setdefault(key, {})
        here[rank] = copied.shared
        if len(here) < len(self._ranks) or self._writing is not None:
            return []
        del self._copied[key]
        self._writing, self._reason = key, "periodic"
        return [WriteCheckpoint(*key, "periodic", self._ranks, any(here.values()))]

    # ------------------------------------------------------------------------------------------ orders

    def on_orders(self, orders: Orders) -> list[SavingEffect]:
        effects: list[SavingEffect] = []
        for part in self.parts:
            if part.generation != orders.generation:
                effects.append(DropPart(part.step, part.generation))
        self.parts = tuple(p for p in self.parts if p.generation == orders.generation)
        if orders.save is None:
            self._asked, self.error = None, ""
        elif orders.ranks and not any(o.want == "save" for o in orders.ranks) and not self._began(orders, orders.save):
            effects += self._write_from_fence(orders, orders.save, shared=False)  # none of ours can copy the rest
        grant = orders.publish
        written = {(p.step, p.generation) for p in self.parts}
        if grant is not None and grant != self._publishing and (grant.step, grant.generation) in written:
            self._publishing = grant
            effects.append(PublishCheckpoint(grant, self._reason, self.torch))
        return effects

    def under_way(self, publishes: bool) -> bool:
        """Something is still to be written here, or (where this node publishes) to be published."""
        return self._writing is not None or (publishes and bool(self.parts))

    def _began(self, orders: Orders, save: Save) -> bool:
        return self._asked is not None and self._asked[:2] == (save.step, orders.generation)

    def _write_from_fence(self, orders: Orders, save: Save, shared: bool) -> list[SavingEffect]:
        asked = (save.step, orders.generation, shared)
        if asked == self._asked:
            return []
        self._asked = asked
        self._writing, self._reason = asked[:2], save.reason
        ranks = (*self._ranks, *save.adopted)
        return [WriteCheckpoint(*asked[:2], save.reason, ranks, shared, save, save.disk)]

    # ------------------------------------------------------------------------------------------ outcomes

    def on_written(self, effect: WriteCheckpoint, files: tuple[SavedFile, ...], error: str) -> list[SavingEffect]:
        if self._writing == (effect.step, effect.generation):
            self._writing = None
        if error:
            self._failed(effect.step, effect.generation, error)
            return [DropPart(effect.step, effect.generation)]
        if not effect.disk:
            return []
        busy = self._publishing.step if self._publishing is not None else -1  # that one ends by itself
        old = [DropPart(p.step, p.generation) for p in self.parts if p.step not in (effect.step, busy)]
        self.parts = (SavePart(effect.step, effect.generation, effect.shared, files, effect.ranks),)
        return [*old]

    def on_published(self, grant: Grant, error: str) -> list[SavingEffect]:
        self._publishing = None
        self.parts = tuple(p for p in self.parts if p.step != grant.step)
        if error:
            self._failed(grant.step, grant.generation, error)
            return [DropPart(grant.step, grant.generation)]
        self.published = (*self.published[-7:], grant.step)
        return []

    def _failed(self, step: int, generation: int, error: str) -> None:
        """Only what was ordered from the fence is waited for; of the others nobody needs to know why they failed."""
        if self._asked is not None and self._asked[:2] == (step, generation):
            self.error = error
