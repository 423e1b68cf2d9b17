"""What an operator says about the pods of a job, and what it is told about their inside.

The operator is an arbiter: where it says that a pod is gone, deleted or on a node that is fenced, its agent is dead,
and nobody waits for its vote. It knows the same secret as the agents. Without one everything goes on as anywhere.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

from onward.core import published
from onward.core.intake import LONGEST_TEXT, Notice
from onward.core.job import OVER, Job
from onward.core.membership import Member
from onward.core.moving import why_left
from onward.core.switch import MOST_TRIES
from onward.manager.logic import ManagerLogic
from onward.wire.messages import ClusterFacts, FaultRequest, JobFacts, Note

AGAIN_S = 1.0  # what has not changed is told again after so long: step and goodput
FASTEST_S = 0.1
CODES = ("node-sub-health", "node-fault")  # of faults that come from the cluster, and are cleared by it


class ClusterDesk:
    """Holds what was heard last; makes up what is told."""

    def __init__(self) -> None:
        self._heard: ClusterFacts | None = None
        self._gone: frozenset[str] = frozenset()
        self._told: JobFacts | None = None
        self._told_at = 0.0
        self._version = 0

    def hear(self, message: ClusterFacts) -> list[Note]:
        """A level: it says everything. Returns what people should know of it."""
        before = self._heard.coming | self._heard.trouble if self._heard is not None else {}
        self._heard = message
        self._gone |= frozenset(message.gone)  # who is gone does not come back; the same pod never does
        now = message.coming | message.trouble
        return [Note(text=text, loud=True) for who, text in now.items() if before.get(who) != text]

    def notices(self, logic: ManagerLogic, here: Iterable[Member]) -> list[FaultRequest]:
        """What has to be published, or cleared, for the board to say what the cluster says."""
        if self._heard is None or logic.job is None:
            return []
        agents = {m.pod: m.id for m in here if m.pod}
        faults = [(agents[f.pod], f) for f in self._heard.faults if f.pod in agents]
        wanted = {(agent, f.code) for agent, f in faults}
        stand = {(f.agent, f.code) for f in logic.job.board.faults if f.code in CODES and not f.done}
        found = [
            Notice(op="report", level=f.level, code=f.code, node=agent, text=f.text[:LONGEST_TEXT])
            for agent, f in faults
            if (agent, f.code) not in stand
        ]
        over = [key for key in stand - wanted if key[0] in agents.values()]
        found += [Notice(op="clear", code=code, node=agent) for agent, code in sorted(over)]
        return [FaultRequest(uid=uuid.uuid4().hex, notice=notice) for notice in found]

    def is_gone(self, m: Member) -> bool:
        return bool(m.pod) and m.pod in self._gone

    def news(self, logic: ManagerLogic, here: Iterable[Member], now: float) -> JobFacts | None:
        """What is to be told now; None: it was told."""
        if now - self._told_at < FASTEST_S:
            return None
        facts = self._facts(logic, list(here), now)
        told = self._told
        same = told is not None and (facts.steps(0) == told.steps(0))
        if same and now - self._told_at < AGAIN_S:
            return None
        self._version += 1
        self._told, self._told_at = facts, now
        return facts

    def forget(self) -> None:
        """Somebody listens anew."""
        self._told = None

    def _facts(self, logic: ManagerLogic, here: list[Member], now: float) -> JobFacts:
        job = logic.job
        pods = {m.pod for m in [*logic.members(), *here] if m.pod} - self._gone
        if job is None:
            starts = bool(here) and not logic.members()
            return JobFacts(waiting=logic.waiting, hopeless=logic.hopeless, pods=sorted(pods), starts=starts)
        placed = {m.id for m in job.places if m is not None}
        open_, last = job.incident, job.last
        if open_ is not None and (not open_.policy or job.puzzled_until):
            open_ = None  # what it is will be known in a moment
        return JobFacts(
            term=job.term,
            generation=job.generation,
            phase=job.phase.value,
            over=job.phase in OVER,
            policies=[p.value for p in job.policies],
            pods=sorted(pods),
            vacant=[i for i, m in enumerate(job.places) if m is None],
            placed=[m.pod for m in job.places if m is not None and m.pod],
            ailing=self._ailing(logic, job, now),
            unfit=self._unfit(logic, job, here, now),
            left={m.pod: why for m in here if m.pod and m.id not in placed and (why := why_left(job, m))},
            managers=[m.manager for m in job.places if m is not None and m.manager],
            seat=next((m.manager for m in here if m.id == logic.settings.seat), ""),
            ranks=len(job.ranks),
            world_size=job.world_size,
            step=min((f.progress.step for f in logic.facts.values() if f.rank in job.ranks), default=-1),
            waiting=job.waiting,
            hopeless=logic.hopeless,
            reason=job.reason,
            incidents=job.incidents,
            incident=open_.number if open_ is not None else 0,
            fault=open_.headline() if open_ is not None else "",
            policy=open_.policy if open_ is not None else "",
            why=open_.why[-1] if open_ is not None and open_.why else "",
            last=last.number if last is not None else 0,
            story=f"{last.headline()}: {last.policy}, {last.total_ms:.0f} ms" if last is not None else "",
            goodput=logic.goodput,
            conditions=[c.text for c in logic.conditions],
        )

    def _ailing(self, logic: ManagerLogic, job: Job, now: float) -> dict[str, str]:
        """Pods on nodes that a hot switch would relieve, if somebody stood by."""
        if not job.limits.hot_switch:
            return {}
        tries = Counter(node for node, _ in job.tried)
        bad = {node: why for node, why in logic.sub_health(now).items() if tries[node] < MOST_TRIES}
        return {m.pod: bad[i] for i, m in enumerate(job.places) if m is not None and m.pod and i in bad}

    def _unfit(self, logic: ManagerLogic, job: Job, here: list[Member], now: float) -> dict[str, str]:
        """Pods whose agent has no place and gets none, whatever happens: another pod must come."""
        placed = {m.id for m in job.places if m is not None}
        at, found = now + logic.settings.wall_s, {}
        for m in here:
            if m.pod and m.id not in placed:
                why = published.why_barred(job.board, m, logic.settings.rules, at)
                if why:
                    found[m.pod] = why
        return found
