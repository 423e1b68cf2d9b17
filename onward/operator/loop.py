"""The loop: one job at a time, look, decide, write the status, do the rest.

The status is written first and once; when that does not succeed (somebody else has written, or nobody answers) nothing
else is done in this pass. A pass that is cut short anywhere is made up for by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onward.api import ranktable
from onward.api.pods import HOT
from onward.core.jobs import MakePod, Plan
from onward.core.reconcile import decide
from onward.kube.client import ApiError, Client
from onward.kube.events import EventRecorder
from onward.kube.objects import PODS, name_of, namespace_of, uid_of
from onward.kube.queue import WorkQueue, work
from onward.log import get_logger
from onward.operator import report
from onward.operator.eyes import JOBS, Eyes, Sight, now
from onward.operator.hands import Hands, NotTheLeader, WriteFailed, guarded
from onward.operator.links import Links
from onward.operator.ranktables import RankTables

log = get_logger("operator")

WORKERS = 4
BIG = 5000.0  # a job of so many pods is looked at once a second, however much happens
CHECKED = 8  # pods that are missing are asked for by name before their loss is counted; so many are enough
TOLD_S = 5.0


class Operator:
    """`gang`: whether pods wait for a PodGroup; None: where PodGroups are served. `leads`: whether this copy may write.
    `namespace`: the only one it minds; None: all.

    `token_in_env`: nodes cannot mount Secrets, so pods get what is in their job's by environment.
    """

    def __init__(
        self,
        client: Client,
        *,
        gang: bool | None = True,
        namespace: str | None = None,
        leads: Callable[[], bool] = lambda: True,
        rank_tables: str = ranktable.ROOT,
        token_in_env: bool = False,
    ) -> None:
        self._client, self._leads = client, leads
        self._queue = WorkQueue(base_s=0.05, cap_s=5.0)  # most of what fails has passed in seconds
        self.eyes = Eyes(client, self._changed, gang=gang, namespace=namespace)
        self.hands = Hands(client, self.eyes, leads, token_in_env)
        self.links = Links(client, self._queue.add)
        self._events = EventRecorder(client, "onward-operator")
        self._tables = RankTables(client, rank_tables, leads, self._say_rank_table)
        self.passes = 0

    def _changed(self, key: str) -> None:
        pods = self.eyes.size(key)
        if pods > BIG / 50:
            self._queue.add_after(key, min(1.0, pods / BIG))
        else:
            self._queue.add(key)

    async def run(self) -> None:
        """For ever."""
        tasks = [asyncio.ensure_future(self.eyes.run()), asyncio.ensure_future(self._events.run())]
        try:
            await self.eyes.synced()
            tasks.append(asyncio.ensure_future(work(self._queue, self.one_pass, WORKERS)))
            await asyncio.gather(*tasks)
        finally:
            self.links.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def one_pass(self, key: str) -> None:
        self.passes += 1
        sight = self.eyes.look(key)
        if sight is None:
            self.eyes.forget(key)
            self.links.forget(key)
            return
        self.links.update(key, sight, self.eyes.memory(sight.obj))
        at = now()
        plan = decide(sight.wanted, sight.seen, at)
        if plan.record.wave > sight.seen.record.wave and await self._was_mistaken(sight):
            self._queue.add(key)
            return
        if plan.hands_off:
            return
        for why in plan.why:
            log.info("%s: %s", key, why)
        await self._write_status(sight, plan, at)
        memory = self.eyes.memory(sight.obj)
        knew = bool(memory.token)
        try:
            await self.hands.carry_out(sight, plan.writes)
        except WriteFailed as e:
            memory.failed(e.problems)
            raise
        if not knew and memory.token:  # now the manager can be spoken to; nothing else may happen for hours
            self.links.update(key, sight, memory)
        tables_s = await self._tables.keep(sight, memory, at)
        if memory.failed({}):
            self._queue.add(key)
        for after_s in (plan.again_s, tables_s):
            if after_s is not None:
                self._queue.add_after(key, after_s)

    async def _was_mistaken(self, sight: Sight) -> bool:
        """Before a loss is counted the server itself is asked: a cache may be behind."""
        held = {p.place for p in sight.seen.pods}
        missing = [place for place in sight.wanted.places() if place not in held]
        if sight.seen.record.launched != sight.seen.record.wave or not missing:
            return False
        mistaken = False
        for role, index in missing[:CHECKED]:
            name = f"{sight.wanted.name}-{role.lower()}-{index}"
            for each in (name, f"{name}{HOT}") if sight.wanted.hot_switch else (name,):
                mistaken = await self._is_there(sight, each) or mistaken
        return mistaken

    async def _is_there(self, sight: Sight, name: str) -> bool:
        try:
            there = await self._client.get(PODS, name, sight.wanted.namespace)
        except ApiError as e:
            if e.code != 404:
                raise
            return False
        owners = [o.get("uid") for o in there["metadata"].get("ownerReferences") or []]
        if sight.wanted.uid not in owners or not uid_of(there):
            return False
        await self.hands.reclaim(PODS, there, self.eyes.pods)
        return True

    async def _write_status(self, sight: Sight, plan: Plan, at: float) -> None:
        old = sight.obj.get("status") or {}
        new = report.status(old, sight.wanted, sight.seen, plan, at)
        first_told = plan.record.told != sight.seen.record.told
        if first_told:  # said before it is written that it was said
            self._tell(sight, plan)
            await self._events.flush(TOLD_S)
        if new != old:
            body = {**sight.obj, "status": new}
            namespace = namespace_of(sight.obj)

            async def write() -> dict[str, object]:
                return await self._client.update(JOBS, body, namespace, sub="status")

            try:
                self.eyes.jobs.learn(await guarded(self._leads, write))
            except ApiError as e:
                if e.code == 409:
                    raise _Overtaken(f"{name_of(sight.obj)} was changed meanwhile") from e
                raise
        if not first_told:
            self._tell(sight, plan)
        made = sum(isinstance(w, MakePod) for w in plan.writes)
        if made:
            log.info("%s/%s: %d pods to make", namespace_of(sight.obj), name_of(sight.obj), made)

    def _say_rank_table(self, sight: Sight, text: str) -> None:
        self._events.record(sight.obj, JOBS, "Warning", "RankTableFailed", text)

    def _tell(self, sight: Sight, plan: Plan) -> None:
        for said in plan.events:
            kind = "Warning" if said.warning else "Normal"
            self._events.record(sight.obj, JOBS, kind, said.reason, said.message)


class _Overtaken(NotTheLeader):
    """What was decided is about a job that is not so any more: look again."""
