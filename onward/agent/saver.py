"""Carries out what `saving` decides: asks the vault, and tells the logic how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onward.agent.effects import Effect, SendRank
from onward.agent.logic import AgentLogic
from onward.agent.places import Places
from onward.agent.saving import DropPart, PublishCheckpoint, SavingEffect, UseDirectory, WriteCheckpoint
from onward.agent.vault import Vault
from onward.checkpoints.disk import folder_name
from onward.core.checkpoints import SavedFile
from onward.errors import StateError
from onward.wire.messages import StoreReply


class Saver:
    """Between the agent's logic and its files."""

    def __init__(
        self,
        logic: AgentLogic,
        vault: Vault,
        places: Places,
        apply: Callable[[Sequence[Effect]], None],
        say: Callable[[str], None],
    ) -> None:
        self._logic, self._vault, self._places = logic, vault, places
        self._apply, self._say = apply, say
        self._said = ""
        self.after: Callable[[], None] = lambda: None  # called when something has been written or published

    async def carry_out(self, effect: SavingEffect) -> None:
        match effect:
            case UseDirectory():
                p = effect.plan
                objection = await asyncio.to_thread(self._vault.use, Path(p.dir), p.keep, p.fresh)
                self._apply([SendRank(effect.process, StoreReply(id=p.id, error=objection))])
            case WriteCheckpoint():
                await self._write(effect)
            case PublishCheckpoint():
                await self._publish(effect)
            case DropPart():
                await asyncio.to_thread(self._vault.drop, effect)

    async def _write(self, effect: WriteCheckpoint) -> None:
        error = ""
        if effect.save is not None:
            try:
                await asyncio.to_thread(self._vault.keep_slots, effect, self._slot)
            except (OSError, StateError, KeyError) as e:
                error = f"local state could not be kept: {e}"
            if not effect.shared and self._vault.holds(effect.step):
                effect = replace(effect, shared=True)  # who copied it died before it could say so
        files: tuple[SavedFile, ...] = ()
        if effect.disk and not error:
            files, error = await self._vault.write(effect)
        self._complain(effect.step, error)
        self._changed(self._logic.saving.on_written(effect, files, error))

    async def _publish(self, effect: PublishCheckpoint) -> None:
        if not self._logic.is_current(effect.grant.generation):  # granted, and overtaken
            return self._changed(self._logic.saving.on_published(effect.grant, "the generation is over"))
        error = await asyncio.to_thread(self._vault.publish, effect)
        self._complain(effect.grant.step, error)
        if not error and effect.reason != "periodic":
            self._say(f"step {effect.grant.step} is saved in {self._vault.directory / folder_name(effect.grant.step)}")
        self._changed(self._logic.saving.on_published(effect.grant, error))

    def _slot(self, rank: int, step: int) -> tuple[bytes, int]:
        number = self._logic.current.get(rank)
        if number is None:  # of a lost node: nobody knows how far it came after that step
            attempt = self._logic.orders.attempt if self._logic.orders is not None else 0
            return self._logic.keeper.of(rank, attempt).slots[step % 2], step - 1
        p = self._logic.processes[number]
        return self._places.slot(p, step).read_bytes(), self._places.begun(p)

    def _changed(self, effects: Sequence[Effect]) -> None:
        self._logic.changed = True
        self._apply(effects)
        self.after()

    def _complain(self, step: int, error: str) -> None:
        """Once for each kind of trouble: a full disk stays full."""
        if error and error != self._said:
            self._say(f"the checkpoint of step {step} could not be written to {self._vault.directory}: {error}")
        self._said = error
