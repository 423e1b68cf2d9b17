"""The loop: look at all that waits, place what fits, say why the rest does not.

A pass is made when something changed, and changes that come together are one pass. What was decided counts at once
(`assumed`), long before the watch shows it, so two passes never give away the same place twice. Bindings are written
beside the passes; a gang whose bindings are under way is left alone until they have ended, one way or the other, and
until then nobody else gets the places that were decided for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

from onward.api.crds import crds
from onward.core.board import Board
from onward.core.gang import NOT_ENOUGH_RESOURCES, Gang, Outcome
from onward.core.placement import Wish
from onward.core.podgroup import INQUEUE, STARTED
from onward.core.turns import PATIENCE_S, Memory, Queue, take_turns
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.definitions import install
from onward.kube.informer import Informer, happened
from onward.kube.objects import NODES, PODS, PRIORITY_CLASSES, Obj, key_of, name_of, namespace_of, uid_of
from onward.log import get_logger
from onward.scheduler import views
from onward.scheduler.binding import Binder
from onward.scheduler.gangs import POD_GROUPS, QUEUES, Member, Roll, Terms, gang_of, task_of
from onward.scheduler.groups import Groups
from onward.scheduler.words import Words

log = get_logger("scheduler")

TOGETHER_S = 0.02  # changes so close together are looked at once
AGAIN_S = 30.0  # a pass is made at least so often while something waits
SOON_S = 1.0
EARLY_S = 3.0  # so long a gang whose pods are not all there is not talked about
SETTLING_S = 10.0  # pods of a half-bound gang that do not exist may be on their way
NEEDED = tuple(f"{each.plural}.{each.group}" for each in (POD_GROUPS, QUEUES))


class Scheduler:
    """Serves the pods whose `schedulerName` is one of `names`."""

    def __init__(
        self, client: Client, names: Collection[str] = ("default-scheduler",), *, patience_s: float = PATIENCE_S
    ) -> None:
        self._client, self._names, self._patience_s = client, frozenset(names), patience_s
        self._changed = asyncio.Event()
        self._words = Words(client, names)
        self._binder = Binder(client)
        self._pods = Informer(client, PODS, on_change=self._on_pod)
        self._nodes = Informer(client, NODES, on_change=self._on_node)
        groups = Informer(client, POD_GROUPS, on_change=self._on_group)
        queues = Informer(client, QUEUES, on_change=lambda old, new: self._changed.set())
        classes = Informer(client, PRIORITY_CLASSES, on_change=lambda old, new: self._changed.set())
        self._informers = (self._pods, self._nodes, groups, queues, classes)
        self._groups = Groups(client, self._words, groups, queues, classes)
        self._board: Board | None = None
        self._roll = Roll()
        self._memory = Memory()
        self._assumed: dict[str, str] = {}  # pod -> node, decided and not yet seen
        self._binding: dict[str, asyncio.Task[None]] = {}  # by gang
        self._dirty: set[str] = set()  # groups whose pods changed
        self._half: dict[str, float] = {}  # gangs that were found half bound, since when
        self.passes = 0

    # What changes

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        self._changed.set()
        if self._board is None:
            return
        key = key_of(new or old or {})
        before = self._roll.members.get(key)
        if before is not None and (new is None or uid_of(new) != before.uid):
            self._assumed.pop(key, None)
            self._board.drop(key)
            self._words.forget(before.uid)
            self._roll.strike(key)
            self._dirty.add(before.gang)
            before = None
        if new is not None:
            self._enter(key, new, before)

    def _enter(self, key: str, pod: Obj, before: Member | None) -> None:
        board = self._the_board
        member = Member(pod, self._wish(pod, before), gang_of(pod))
        self._dirty.add(member.gang)
        if member.node:
            self._assumed.pop(key, None)
        if views.finished(pod):
            board.drop(key)
        elif member.node and (board.holds(key) != member.node or before is None or before.wish is not member.wish):
            board.put(member.wish, member.node)
        self._roll.enter(member, self._waits(pod))

    def _wish(self, pod: Obj, before: Member | None) -> Wish:
        if before is not None and all(
            before.pod["metadata"].get(part) == pod["metadata"].get(part) for part in ("labels", "annotations")
        ):
            kept = {**before.pod["spec"], "nodeName": None} == {**pod["spec"], "nodeName": None}
            if kept:
                return before.wish
        return views.wish(pod, task_of(pod))

    def _waits(self, pod: Obj) -> bool:
        spec, metadata = pod["spec"], pod["metadata"]
        return (
            not spec.get("nodeName")
            and not metadata.get("deletionTimestamp")
            and not views.finished(pod)
            and not spec.get("schedulingGates")
            and (spec.get("schedulerName") or "default-scheduler") in self._names
        )

    def _on_node(self, old: Obj | None, new: Obj | None) -> None:
        if self._board is not None:
            gains = self._board.gains
            if new is None:
                self._board.remove(name_of(old or {}))
            else:
                self._board.add(views.room(new))
            if self._board.gains == gains and new is not None:
                return  # a heartbeat
        self._changed.set()

    def _on_group(self, old: Obj | None, new: Obj | None) -> None:
        self._groups.seen(old, new)
        self._dirty.add(key_of(new or old or {}))
        self._changed.set()

    # The loop

    async def run(self) -> None:
        await self._define()
        tasks = [asyncio.ensure_future(each.run()) for each in (*self._informers, self._words)]
        try:
            for informer in self._informers:
                await informer.synced()
            await self._groups.default_queue()
            self._begin()
            tasks.append(asyncio.ensure_future(self._passes()))
            await asyncio.gather(*tasks)
        finally:
            tasks += self._binding.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _define(self) -> None:
        try:
            await install(self._client, [crd for crd in crds() if name_of(crd) in NEEDED])
        except ApiError as e:
            if e.code != 403:
                raise
            log.warning("%s; PodGroup and Queue must be there already", e)

    def _begin(self) -> None:
        """From what is there: whatever another scheduler decided before is in the pods."""
        self._board = Board(views.room(node) for node in self._nodes)
        for pod in self._pods:
            self._enter(key_of(pod), pod, None)
        for group in self._groups:
            self._dirty.add(key_of(group))

    @property
    def _the_board(self) -> Board:
        assert self._board is not None
        return self._board

    async def _passes(self) -> None:
        took_s = 0.0
        while True:
            soon = self._words.held_back or bool(self._half)
            await happened(self._changed, SOON_S if soon else AGAIN_S)
            await asyncio.sleep(max(TOGETHER_S, took_s))  # at most half of the time is spent on passes
            self._changed.clear()
            begun = time.monotonic()
            try:
                await self.one_pass()
                took_s = time.monotonic() - begun
            except (ApiError, Unreachable) as e:
                log.info("scheduling: %s; again soon", e)
                await asyncio.sleep(SOON_S)
                self._changed.set()

    async def one_pass(self) -> None:
        self.passes += 1
        self._words.held_back = False
        board, now = self._the_board, time.time()
        queues = self._groups.queues(self._roll, self._assumed)
        gangs = list(self._gangs())
        outcomes = take_turns(board, gangs, queues, now, patience_s=self._patience_s, memory=self._memory)
        for outcome in outcomes:
            if outcome.nodes:
                self._start(outcome)
        await self._release([outcome for outcome in outcomes if outcome.waits])
        worth_telling = [outcome for outcome in outcomes if not self._early(outcome, now)]
        for outcome in worth_telling:
            self._tell(outcome)
        await self._write_statuses(worth_telling, queues, now)

    def _gangs(self) -> Iterable[Gang]:
        priorities = self._groups.priorities()
        for key, waiting in list(self._roll.waiting.items()):
            if key in self._binding or all(pod in self._assumed for pod in waiting):
                continue
            group = self._groups.get(key) if next(iter(waiting.values())).gang else None
            if group is None and key in self._roll.gangs:
                self._no_group(key, waiting.values())
                continue
            terms = Terms.of(group) if group is not None else None
            phase = self._groups.phase(group) if group is not None else ""
            yield self._roll.gang(key, terms, phase, priorities, self._assumed)

    def _no_group(self, key: str, waiting: Iterable[Member]) -> None:
        for member in waiting:
            if time.time() - member.created > SOON_S:
                self._words.refuse(member.pod, f'PodGroup "{key}" does not exist')
            else:
                self._words.held_back = True

    def _early(self, outcome: Outcome, now: float) -> bool:
        """The other pods of the gang are being made right now."""
        early = outcome.incomplete and now - outcome.gang.since < EARLY_S
        self._words.held_back |= early
        return early

    def _tell(self, outcome: Outcome) -> None:
        """A gang that waits says so with its name, and how much of it would fit."""
        gang = outcome.gang
        for key, why in outcome.left.items():
            member = self._roll.members.get(key)
            if member is None:
                continue
            if outcome.waits and not gang.single:
                short = next((k for k, each in outcome.left.items() if each == outcome.message), key)
                why = f'Gang "{gang.key}" gets rejected due to member Pod "{short.rpartition("/")[2]}" is '
                why += f'unschedulable with reason "{outcome.message}"; '
                why += f"{min(outcome.could, gang.min_member)} of {gang.min_member} can be placed"
            self._words.refuse(member.pod, why)

    # Bindings

    def _start(self, outcome: Outcome) -> None:
        self._assumed.update(outcome.nodes)
        key = outcome.gang.key
        self._binding[key] = asyncio.ensure_future(self._settle(outcome))

    async def _settle(self, outcome: Outcome) -> None:
        gang = outcome.gang
        members = {key: self._roll.members[key] for key in outcome.nodes if key in self._roll.members}
        bound: set[str] = set()
        try:
            bound = await self._bind_all(gang, members, outcome.nodes)
        except (ApiError, Unreachable) as e:
            log.info("gang %s: %s; again soon", gang.key, e)
        except Exception:  # what is not bound has to be given back all the same
            log.exception("binding gang %s", gang.key)
        del self._binding[gang.key]
        for key in members.keys() - bound:
            self._give_back(key, members[key])
        self._dirty.add(gang.key)
        self._changed.set()

    async def _bind_all(self, gang: Gang, members: dict[str, Member], nodes: dict[str, str]) -> set[str]:
        """Which of them have a node in the end."""
        group = None if gang.single else self._groups.get(gang.key)
        if group is not None and not gang.started:
            await self._groups.admit(group)
        found = await asyncio.gather(*(self._bind(member, nodes[key]) for key, member in members.items()))
        return {key for key, has in zip(members, found, strict=True) if has}

    async def _bind(self, member: Member, node: str) -> bool:
        found = await self._binder.bind(member.pod, node)
        if found:
            self._words.placed(member.pod, found)
        return bool(found)

    def _give_back(self, key: str, member: Member) -> None:
        """It did not get its node. What the watch has shown meanwhile counts more."""
        now = self._roll.members.get(key)
        if now is not None and now.uid == member.uid and not now.node and key in self._assumed:
            del self._assumed[key]
            self._the_board.drop(key)

    async def _release(self, waiting: list[Outcome]) -> None:
        """Gangs that a scheduler left half bound and that cannot be completed now give back what they hold."""
        half = {o.gang.key: o for o in waiting if o.gang.held and not o.gang.started and not o.gang.single}
        self._half = {key: self._half.get(key, time.monotonic()) for key in half}
        for key, outcome in half.items():
            if outcome.reason != NOT_ENOUGH_RESOURCES and time.monotonic() < self._half[key] + SETTLING_S:
                continue
            for member in self._roll.held(key, self._assumed):
                text = f'Gang "{key}" was left with {outcome.gang.held} of {outcome.gang.min_member} pods bound '
                text += f"and cannot be completed ({outcome.message}); it gives back what it holds"
                self._words.event(member.pod, PODS, "Warning", "GangReleased", text)
                options = {"preconditions": {"uid": member.uid}}
                try:
                    await self._client.delete(PODS, name_of(member.pod), namespace_of(member.pod), options)
                except ApiError as e:
                    if e.code not in (404, 409):
                        raise

    # Statuses

    async def _write_statuses(self, outcomes: list[Outcome], queues: dict[str, Queue], now: float) -> None:
        told = {outcome.gang.key: outcome for outcome in outcomes if not outcome.gang.single}
        dirty, self._dirty = self._dirty | set(told), set()
        writes = []
        for key in dirty:
            group = self._groups.get(key)
            if group is None or key in self._binding:
                continue
            refused = ""
            if self._groups.phase(group) not in (*STARTED, INQUEUE):
                refused = self._groups.refused(group, self._the_board, queues, now, self._patience_s)
                if refused:
                    self._words.held_back = True  # looked at again soon
                    self._dirty.add(key)
            census = self._roll.census(key, self._assumed)
            whole = self._roll.was_whole(key, Terms.of(group).min_member)
            by = self._roll.scheduler(key)
            writes.append(self._groups.update(group, census, told.get(key), refused, whole, by))
        failed = [e for e in await asyncio.gather(*writes, return_exceptions=True) if isinstance(e, BaseException)]
        if failed:
            self._dirty |= dirty
            raise failed[0]
        if dirty and not await self._groups.update_queues(self._roll, self._assumed):
            self._words.held_back = True
            self._dirty.add("")
