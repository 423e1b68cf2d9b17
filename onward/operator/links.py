"""Which jobs have a way to their manager, and what the cluster has to say about each."""

from __future__ import annotations

from collections.abc import Callable

from onward.api import pods
from onward.api.job import Job
from onward.core.jobs import OVER
from onward.kube.client import Client
from onward.kube.objects import PODS, uid_of
from onward.operator.eyes import Memory, Sight, alive
from onward.operator.link import Link, Situation
from onward.operator.views import over
from onward.wire.messages import NodeFault


class Links:
    """`changed` hears the key of a job about whose inside something is new."""

    def __init__(self, client: Client, changed: Callable[[str], None]) -> None:
        self._client, self._changed = client, changed
        self._links: dict[str, tuple[str, Link]] = {}  # key -> uid of the job, link

    def update(self, key: str, sight: Sight, memory: Memory) -> None:
        job = sight.read
        ended = sight.seen.word is not None and sight.seen.word.type in OVER
        if not isinstance(job, Job) or ended or sight.seen.ends or job.app:
            self.forget(key)
            return
        known = self._links.get(key)
        if known is None or known[0] != job.uid:
            self.forget(key)
            link = Link(memory, lambda: self._changed(key), lambda uids: self._really_gone(job, uids))
            known = self._links[key] = (job.uid, link)
        known[1].update(_situation(job, sight))

    def forget(self, key: str) -> None:
        known = self._links.pop(key, None)
        if known is not None:
            known[1].close()

    def close(self) -> None:
        for key in list(self._links):
            self.forget(key)

    async def _really_gone(self, job: Job, uids: list[str]) -> list[str]:
        """The server is asked itself: what we say here, nobody can take back."""
        labels = ",".join(f"{k}={v}" for k, v in pods.job_labels(job).items())
        there = (await self._client.list(PODS, job.namespace, labelSelector=labels))["items"]
        living = {uid_of(pod) for pod in there if not over(pod)}
        return [uid for uid in uids if uid not in living]


def _situation(job: Job, sight: Sight) -> Situation:
    leader, others, trouble, coming = "", [], {}, {}
    faults: list[NodeFault] = []
    first = (job.leader.name, 0) if job.leader is not None else None
    for pod in sight.seen.pods:
        address = str((sight.pods[pod.name].get("status") or {}).get("podIP") or "")
        if pod.phase == "Running" and address and pod.deleting is None:
            if pod.place is not None and pod.place == first:
                leader = address
            else:
                others.append(address)
        node = sight.seen.nodes.get(pod.node)
        if pod.node and (node is None or not node.ready or node.trouble):
            why = "exists no more" if node is None else node.trouble or "is not ready"
            trouble[pod.uid] = f"pod {pod.name}: its node {pod.node} {why}"
        if node is not None and node.sub_health:
            faults.append(NodeFault(pod=pod.uid, level="sub-health", code="node-sub-health", text=node.sub_health))
        if node is not None and node.fault and not node.trouble:
            faults.append(NodeFault(pod=pod.uid, level="pre-separate", code="node-fault", text=node.fault))
        if pod.phase == "Pending" and pod.wave > sight.seen.record.floor:
            waits = f": {pod.text}" if pod.text else ""
            coming[pod.name] = f"pod {pod.name} is on its way{waits}"
    return Situation(
        leader=leader,
        others=tuple(sorted(others)),
        alive=alive(sight.seen.pods),
        begun=sight.seen.record.begun == sight.seen.record.floor,
        trouble=tuple(sorted(trouble.items())),
        coming=tuple(sorted(coming.items())),
        faults=tuple(faults),
    )
