"""What the operator sees: caches of all objects that matter, and everything about one job out of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from onward.api import ascendjob, pods
from onward.api.job import Job, Problem
from onward.core.jobs import Gang, Insight, NodeSeen, Place, PodSeen, Seen, Wanted, Word
from onward.kube.client import Client
from onward.kube.index import Index, by_controller
from onward.kube.informer import Informer
from onward.kube.objects import (
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    SERVICES,
    Obj,
    Resource,
    controller_of,
    key_of,
    name_of,
    namespace_of,
    uid_of,
    version_of,
)
from onward.kube.served import WhileServed
from onward.operator import places, views

JOBS = Resource(ascendjob.GROUP, ascendjob.VERSION, ascendjob.PLURAL, ascendjob.KIND)
OURS = f"{pods.OPERATOR_NAME}={pods.CONTROLLER}"
SYNC_S = 120.0
FIRST_S = 5.0  # so long a manager may take to be heard for the first time, before pods are judged without it
RETURN_S = 20.0  # where there was one in office, so long it is worth waiting for what it says


@dataclass
class Memory:
    """What is known of one job and need not outlive the operator."""

    uid: str
    token: str = ""
    errors: dict[str, str] = field(default_factory=dict)  # what could not be written, twice in a row
    slips: dict[str, str] = field(default_factory=dict)  # what could not be written the last time
    previous: dict[Place, str] = field(default_factory=dict)
    insight: Insight | None = None
    lately: Insight | None = None  # before the way to it was cut
    insight_until: float = 0.0
    managers: tuple[str, ...] = ()
    hopeless: tuple[str, frozenset[str]] = ("", frozenset())  # why those inside cannot go on; the pods that say so
    table: str = ""  # the rank table that was written last

    def failed(self, problems: dict[str, str]) -> bool:
        """What went wrong in a pass. A single slip is not worth a word; True when there is something else to say."""
        before = self.errors
        self.errors = {what: text for what, text in problems.items() if what in self.slips}
        self.slips = problems
        return self.errors != before


@dataclass(frozen=True)
class Sight:
    """A job and all that belongs to it, at one moment."""

    obj: Obj
    read: Job | list[Problem]
    wanted: Wanted
    seen: Seen
    pods: dict[str, Obj]  # by name
    service: Obj | None


class Eyes:
    """`changed` hears the key of each job about which something may have changed. `gang`: whether pods wait for a
    PodGroup; None: where, and as long as, PodGroups are served.
    """

    def __init__(
        self, client: Client, changed: Callable[[str], None], *, gang: bool | None = True, namespace: str | None = None
    ) -> None:
        self._client, self._changed, self._gang = client, changed, gang
        self.jobs = Informer(client, JOBS, namespace, on_change=self._on_job)
        self.pods = Informer(client, PODS, namespace, on_change=self._on_owned, labelSelector=OURS)
        self.services = Informer(client, SERVICES, namespace, on_change=self._on_owned, labelSelector=OURS)
        self.nodes = Informer(client, NODES, on_change=self._on_node)
        self.namespaces = Informer(client, NAMESPACES)
        self.groups = Informer(client, PODGROUPS, namespace, on_change=self._on_owned)
        self.queues = Informer(client, QUEUES)
        self.classes = Informer(client, PRIORITY_CLASSES)
        self._gangs_served = WhileServed(client, self.groups, self._look_at_all)
        others = (
            WhileServed(client, self.queues, lambda: None),
            WhileServed(client, self.classes, lambda: None, may_be_forbidden=True),
        )
        self._optional = (self._gangs_served, *others) if gang is not False else ()
        self._pods_of = Index(self.pods, by_controller)
        self._services_of = Index(self.services, by_controller)
        self._groups_of = Index(self.groups, by_controller)
        self._pods_on = Index(self.pods, lambda pod: str(pod["spec"].get("nodeName") or ""))
        self._seen: dict[str, tuple[str, PodSeen]] = {}  # uid of a pod -> its version, as it was read
        self._nodes_seen: dict[str, tuple[str, NodeSeen]] = {}
        self._read: dict[str, tuple[str, Job | list[Problem]]] = {}
        self.memories: dict[str, Memory] = {}

    # ------------------------------------------------------------------------------------------ watching

    async def run(self) -> None:
        """For ever."""
        always = [self.jobs, self.pods, self.services, self.nodes, self.namespaces]
        tasks = [asyncio.ensure_future(informer.run()) for informer in always]
        tasks += [asyncio.ensure_future(kind.run()) for kind in self._optional]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def synced(self) -> None:
        for informer in (self.nodes, self.namespaces, self.services, self.pods, self.jobs):
            await informer.synced(SYNC_S)
        for kind in self._optional:
            await kind.synced(SYNC_S)

    def _look_at_all(self) -> None:
        """PodGroups have come, or gone: jobs are made otherwise."""
        for job in self.jobs:
            self._changed(key_of(job))

    def _on_job(self, old: Obj | None, new: Obj | None) -> None:
        for obj in (old, new):
            if obj is not None:
                self._changed(key_of(obj))

    def _on_owned(self, old: Obj | None, new: Obj | None) -> None:
        for obj in (old, new):
            owner = controller_of(obj) if obj is not None else None
            if obj is not None and owner is not None and owner.get("kind") == JOBS.kind:
                self._changed(f"{namespace_of(obj)}/{owner.get('name')}")
        if new is None and old is not None:
            self._seen.pop(uid_of(old), None)

    def _on_node(self, old: Obj | None, new: Obj | None) -> None:
        before = views.node_seen(old) if old is not None else None
        after = views.node_seen(new) if new is not None else None
        if after is None:
            self._nodes_seen.pop(name_of(old or {}), None)
        if before == after:
            return
        for pod in self._pods_on[name_of(new or old or {})]:
            self._on_owned(pod, pod)

    # ------------------------------------------------------------------------------------------ looking

    def size(self, key: str) -> int:
        obj = self.jobs.get(key)
        return len(self._pods_of[uid_of(obj)]) if obj is not None else 0

    def groups_of(self, obj: Obj) -> list[Obj]:
        return self._groups_of[uid_of(obj)]

    def memory(self, obj: Obj) -> Memory:
        found = self.memories.get(key_of(obj))
        if found is None or found.uid != uid_of(obj):
            record = views.read_record(obj.get("status") or {})
            wait_s = RETURN_S if record.begun == record.floor else FIRST_S
            found = self.memories[key_of(obj)] = Memory(uid_of(obj), insight_until=now() + wait_s)
        return found

    def forget(self, key: str) -> None:
        memory = self.memories.pop(key, None)
        if memory is not None:
            self._read.pop(memory.uid, None)

    def look(self, key: str) -> Sight | None:
        """None: there is no such job (any more)."""
        obj = self.jobs.get(key)
        if obj is None:
            return None
        memory, read = self.memory(obj), self._job(obj)
        wanted = views.wanted(obj, read)
        own = self._pods_of[uid_of(obj)]
        service = self._service(obj, read)
        seats = places.seats(own, read, memory.insight.placed if memory.insight is not None else ())
        known = tuple(self._pod(pod, read, *seats[uid_of(pod)]) for pod in own)
        seen = Seen(
            generation=int(obj["metadata"].get("generation") or 1),
            pods=known,
            nodes=self._nodes(own),
            service=service is not None,
            leads_to=pods.leads_to(service) if service is not None else "",
            secret=bool(memory.token),
            gang=self._gang_of(obj, read),
            record=views.read_record(obj.get("status") or {}),
            word=last_word(obj.get("status") or {}),
            insight=memory.insight,
            lately=memory.lately,
            insight_until=memory.insight_until,
            hopeless=memory.hopeless[0] if memory.hopeless[1] == alive(known) else "",
            errors=memory.errors,
            ends=self._ends(obj),
            previous=memory.previous,
        )
        for pod in seen.pods:
            if pod.place is not None and pod.node:
                memory.previous[pod.place] = pod.node
        return Sight(obj, read, wanted, seen, {name_of(p): p for p in own}, service)

    def _job(self, obj: Obj) -> Job | list[Problem]:
        """Read once for each version of what the user can write."""
        metadata = obj["metadata"]
        is_new = not (obj.get("status") or {}).get("conditions")
        gang = self._gangs(obj)
        mark = f"{is_new}:{gang}:{metadata.get('generation')}:{metadata.get('labels')}:{metadata.get('annotations')}"
        known = self._read.get(uid_of(obj))
        if known is None or known[0] != mark:
            # Only a job that begins is asked about its queue: one that is deleted later does not end those in it.
            queues, classes = (_names(kind) if is_new else None for kind in (self.queues, self.classes))
            read = ascendjob.read(obj, gang=gang, queues=queues, classes=classes)
            known = self._read[uid_of(obj)] = (mark, read)
        return known[1]

    def _gangs(self, obj: Obj) -> bool:
        """Pods in a PodGroup would wait for ever for those that are in none."""
        asked = self._gangs_served.served if self._gang is None else self._gang
        return asked and all(pods.GANG in (p["metadata"].get("annotations") or {}) for p in self._pods_of[uid_of(obj)])

    def _pod(self, pod: Obj, read: Job | list[Problem], place: Place | None, stands_in: Place | None) -> PodSeen:
        known = self._seen.get(uid_of(pod))
        template = read.replica(place[0]).digest if isinstance(read, Job) and place is not None else ""
        now = (version_of(pod), place, stands_in, views.outdated(pod, template))
        if known is not None and (known[0], known[1].place, known[1].stands_in, known[1].outdated) == now:
            return known[1]
        seen = replace(views.pod_seen(pod, place, ascendjob.CONTAINER, template), stands_in=stands_in)
        self._seen[uid_of(pod)] = (version_of(pod), seen)
        return seen

    def _nodes(self, own: list[Obj]) -> dict[str, NodeSeen]:
        names = {str(pod["spec"].get("nodeName") or "") for pod in own}
        return {name: self._node(node) for name in names if (node := self.nodes.get(name)) is not None}

    def _node(self, node: Obj) -> NodeSeen:
        known = self._nodes_seen.get(name_of(node))
        if known is None or known[0] != version_of(node):
            known = self._nodes_seen[name_of(node)] = (version_of(node), views.node_seen(node))
        return known[1]

    def _service(self, obj: Obj, read: Job | list[Problem]) -> Obj | None:
        """Only with an address: pods are told it."""
        if isinstance(read, list):
            return None
        for service in self._services_of[uid_of(obj)]:
            if name_of(service) == pods.service_name(read) and (service.get("spec") or {}).get("clusterIP"):
                return service
        return None

    def _gang_of(self, obj: Obj, read: Job | list[Problem]) -> Gang | None:
        for group in self._groups_of[uid_of(obj)]:
            if isinstance(read, list):
                return Gang()
            if name_of(group) == pods.pod_group_name(read) and not group["metadata"].get("deletionTimestamp"):
                return views.gang_seen(group, read)
        return None

    def _ends(self, obj: Obj) -> str:
        if obj["metadata"].get("deletionTimestamp"):
            return "it is being deleted"
        namespace = self.namespaces.get(namespace_of(obj))
        if namespace is not None and namespace["metadata"].get("deletionTimestamp"):
            return "its namespace is being deleted"
        return ""


def _names(informer: Informer) -> list[str] | None:
    """Of those that exist, where somebody knows."""
    return [name_of(each) for each in informer] if informer.healthy else None


def alive(pods: Iterable[PodSeen]) -> frozenset[str]:
    """The uids of those that are there and have not ended."""
    return frozenset(p.uid for p in pods if not p.over)


def last_word(status: Obj) -> Word | None:
    """The state that is written down: the last condition."""
    conditions = status.get("conditions") or []
    if not conditions:
        return None
    last = conditions[-1]
    return Word(str(last.get("type")), str(last.get("reason") or ""), str(last.get("message") or ""))


def now() -> float:
    """The time of day, which is what objects carry."""
    return time.time()
