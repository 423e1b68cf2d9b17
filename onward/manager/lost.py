"""Which nodes are lost, and the ranks with them: gone, told to leave, separated, or silent for too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.core.facts import FaultReport, RankFacts, Stage
from onward.core.job import Job, node_of
from onward.core.membership import Member
from onward.manager.bulletin import Bulletin
from onward.manager.roll import Roll
from onward.manager.settings import ManagerSettings


class Lost:
    """Judges by what was heard, and by what was published."""

    def __init__(self, settings: ManagerSettings, roll: Roll, bulletin: Bulletin) -> None:
        self._settings = settings
        self._roll = roll
        self._bulletin = bulletin

    def why(self, job: Job, m: Member, now: float) -> str:
        """Empty: it is not."""
        if m.id in self._roll.gone:
            return "its process is gone"
        if self._roll.leaves(job, m.id, now):
            return "it was told to leave"
        separated = self._bulletin.why_separated(job, m.id, now)
        if separated:
            return separated
        silent = self._roll.silence(m, now)
        if silent > self._settings.node_timeout_s and self._settings.nodes > 1:
            return f"no sign of life for {silent:.1f} s"
        return ""

    def deaf(self, job: Job, now: float) -> bool:
        """Somebody is silent who may yet be heard again."""
        return any(not self.why(job, m, now) for m in self._roll.quiet(job, now))

    def ranks(self, job: Job, facts: Mapping[int, RankFacts], now: float) -> dict[int, RankFacts]:
        """What is to be held of the ranks of lost nodes from now on."""
        found = {}
        for node, m in enumerate(job.places):
            why = self.why(job, m, now) if m is not None else ""
            if m is None or not why:
                continue
            text = f"node {node}, {m.name}: {why}"
            for rank in [r for r in range(job.world_size) if node_of(job, r) == node]:
                number = job.incarnations[rank]
                old = facts.get(rank, RankFacts(rank, node, number))
                if old.incarnation == number and old.ended_well:
                    continue  # its rank had ended well: nothing of it is lost
                since = 0.0 if m.id in self._roll.gone else self._roll.silence(m, now)
                if m.id not in self._roll.seen:  # it went while nobody was in office: the others have stood since then
                    since = max(since, self._roll.times().still_s)
                fault = FaultReport("node", rank, number, step=old.progress.step, text=text, at=now, since_s=since)
                found[rank] = replace(
                    old, incarnation=number, stage=Stage.EXITED, fault=fault, local_steps=(), memory=(), kept=()
                )
        return found
