"""PodGroups and Queues: what they say, and the status that is written to them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from onward.core import podgroup
from onward.core.board import Board
from onward.core.gang import Outcome
from onward.core.podgroup import Census
from onward.core.quantity import write
from onward.core.turns import DEFAULT_QUEUE, Queue
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.informer import Informer
from onward.kube.objects import Obj, key_of, name_of, namespace_of, stamp, uid_of, version_of
from onward.scheduler.gangs import POD_GROUPS, QUEUES, Roll, Terms, phase_of
from onward.scheduler.views import amounts
from onward.scheduler.words import Words

AT_ONCE = 16
QUEUES_S = 1.0  # between two looks at what queues hold in all


class Groups:
    """Reads from informers; remembers what it wrote until they show it."""

    def __init__(self, client: Client, words: Words, groups: Informer, queues: Informer, classes: Informer) -> None:
        self._client, self._words = client, words
        self._groups, self._queues, self._classes = groups, queues, classes
        self._written: dict[str, Obj] = {}  # uid -> the group as it was written, newer than the informer's
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._queues_at = float("-inf")
        self._session = uuid.uuid4().hex[:8]

    def get(self, gang: str) -> Obj | None:
        return self._groups.get(gang)

    def __iter__(self) -> Any:
        return iter(self._groups)

    def seen(self, old: Obj | None, group: Obj | None) -> None:
        """The informer has something. It may be older than what we wrote."""
        if group is None and old is not None:
            self._written.pop(uid_of(old), None)
            self._words.forget(uid_of(old))
        written = self._written.get(uid_of(group)) if group is not None else None
        if group is not None and (written is None or not _older(group, written)):
            self._written.pop(uid_of(group), None)

    def status(self, group: Obj) -> dict[str, Any]:
        return self._written.get(uid_of(group), group).get("status") or {}

    def phase(self, group: Obj) -> str:
        return phase_of({"status": self.status(group)})

    def priorities(self) -> dict[str, int]:
        return {name_of(each): int(each.get("value") or 0) for each in self._classes}

    def queues(self, roll: Roll, assumed: Mapping[str, str]) -> dict[str, Queue]:
        found = {}
        for each in self._queues:
            spec = each.get("spec") or {}
            state = (each.get("status") or {}).get("state") or "Open"
            limits = amounts(spec.get("capability"))
            found[name_of(each)] = Queue(
                name_of(each), int(spec.get("weight") or 1), limits, open=state not in ("Closed", "Closing")
            )
        found.setdefault(DEFAULT_QUEUE, Queue(DEFAULT_QUEUE))
        if len(found) == 1 and not found[DEFAULT_QUEUE].capability:
            return found  # nobody to compare with
        for group in self._groups:
            queue = found.get(Terms.of(group).queue)
            if queue is not None:
                for member in roll.held(key_of(group), assumed):
                    for name, value in member.wish.requests.items():
                        queue.used[name] = queue.used.get(name, 0) + value
        return found

    def refused(self, group: Obj, board: Board, queues: Mapping[str, Queue], now: float, patience_s: float) -> str:
        """Why a group is not let in yet: its pods are not worth making."""
        terms = Terms.of(group)
        queue = queues.get(terms.queue)
        if queue is None:
            return f'queue "{terms.queue}" does not exist'
        if not queue.open:
            return f'queue "{terms.queue}" is closed'
        over = [n for n, v in terms.min_resources.items() if n in queue.capability and v > queue.capability[n]]
        if over:
            return f'it needs more {", ".join(over)} than queue "{terms.queue}" may ever use (its capability)'
        total = {name: board.total[which] for name, which in board.resources.items()}
        waited = now - terms.created >= patience_s
        if waited and all(total.get(n, 0) >= v for n, v in terms.min_resources.items()):
            return ""  # it has a right to be next
        return podgroup.admit(terms.min_resources, total, _used(board))

    async def write(self, group: Obj, status: dict[str, Any]) -> None:
        """Raises what the server answers, except that the group is gone."""
        if status == self.status(group):
            return
        patch = {"metadata": {"uid": uid_of(group)}, "status": status}
        try:
            async with self._limit:
                now = await self._client.patch(POD_GROUPS, name_of(group), patch, namespace_of(group), sub="status")
        except ApiError as e:
            if e.code not in (404, 409):
                raise
            return
        self._written[uid_of(group)] = now

    async def admit(self, group: Obj) -> None:
        """Before the first of its pods is bound."""
        if self.phase(group) not in (podgroup.INQUEUE, *podgroup.STARTED):
            await self.write(group, {**self.status(group), "phase": podgroup.INQUEUE})

    async def update(
        self, group: Obj, census: Census, outcome: Outcome | None, refused: str, whole: bool, by: str
    ) -> None:
        """One write, when something is different."""
        terms, old = Terms.of(group), self.status(group)
        was = podgroup.RUNNING if whole and self.phase(group) != podgroup.UNKNOWN else self.phase(group)
        phase = podgroup.phase(was, census, terms.min_member, refused)
        counts = {"running": census.running, "succeeded": census.succeeded, "failed": census.failed}
        new = self._condition(group, phase, census, outcome, refused)
        said = podgroup.conditions(old.get("conditions") or [], new)
        status = {**old, "phase": phase, "conditions": said, **counts}
        try:
            await self.write(group, status)
        except (ApiError, Unreachable):
            self._words.forget(uid_of(group))  # it was not said
            raise
        if phase == podgroup.RUNNING and phase_of({"status": old}) != phase:
            self._words.event(group, POD_GROUPS, "Normal", "Scheduled", "pod group is ready", by)
        elif new is not None and new["type"] == podgroup.UNSCHEDULABLE:
            self._words.event(group, POD_GROUPS, "Warning", "Unschedulable", new["message"], by)

    def _condition(
        self, group: Obj, phase: str, census: Census, outcome: Outcome | None, refused: str
    ) -> dict[str, Any] | None:
        terms, at, uid = Terms.of(group), stamp(time.time()), uid_of(group)
        if phase in (podgroup.RUNNING, podgroup.COMPLETED):
            self._words.forget(uid)
            return podgroup.condition(podgroup.SCHEDULED, podgroup.READY, "", at, self._session)
        if phase == podgroup.PENDING:
            reason, text = "NotEnoughResources", podgroup.not_ready(census, terms.min_member, 0, refused)
        elif outcome is not None and outcome.waits:
            reason = outcome.reason
            text = podgroup.not_ready(census, terms.min_member, outcome.could, outcome.message)
        else:
            return None
        if not self._words.new(uid, text):
            return None
        return podgroup.condition(podgroup.UNSCHEDULABLE, reason, text, at, self._session)

    async def default_queue(self) -> None:
        """There is always one."""
        try:
            await self._client.create(QUEUES, {
                "apiVersion": QUEUES.api_version,
                "kind": "Queue",
                "metadata": {"name": DEFAULT_QUEUE},
                "spec": {"weight": 1, "reclaimable": True},
            })  # fmt: skip
        except ApiError as e:
            if e.code not in (403, 409):  # not ours to make, or there
                raise

    async def update_queues(self, roll: Roll, assumed: Mapping[str, str]) -> bool:
        """Now and then; False: not now, ask again soon."""
        if time.monotonic() < self._queues_at + QUEUES_S:
            return False
        self._queues_at = time.monotonic()
        phases: dict[str, Counter[str]] = {}
        used: dict[str, Counter[str]] = {}
        for group in self._groups:
            name = Terms.of(group).queue
            phases.setdefault(name, Counter())[self.phase(group).lower() or "pending"] += 1
            for member in roll.held(key_of(group), assumed):
                used.setdefault(name, Counter()).update(member.wish.requests)
        for queue in self._queues:
            name, old = name_of(queue), queue.get("status") or {}
            counts = {each: phases.get(name, Counter())[each] for each in _COUNTED}
            allocated = {k: write(k, v) for k, v in sorted(used.get(name, Counter()).items()) if v}
            status = {"state": old.get("state") or "Open", **counts, "allocated": allocated}
            if any(old.get(key) != value for key, value in status.items()):
                gone = {key: None for key in old.get("allocated") or {} if key not in allocated}
                patch = {"status": {**status, "allocated": {**allocated, **gone}}}
                try:
                    await self._client.patch(QUEUES, name, patch, sub="status")
                except ApiError as e:
                    if e.code not in (404, 409):
                        raise
        return True


_COUNTED = tuple(
    phase.lower()
    for phase in (podgroup.PENDING, podgroup.INQUEUE, podgroup.RUNNING, podgroup.UNKNOWN, podgroup.COMPLETED)
)


def _older(one: Obj, other: Obj) -> bool:
    try:
        return int(version_of(one)) < int(version_of(other))
    except ValueError:
        return False  # a server with other versions than numbers


def _used(board: Board) -> dict[str, int]:
    free = [0] * len(board.total)
    for spot in board:
        free = [a + b for a, b in zip(free, spot.free, strict=True)]
    return {name: board.total[which] - free[which] for name, which in board.resources.items()}
