"""Who belongs to which gang, and what the gang asks for.

A pod names its gang in one of the ways below; each way is a reader that finds the name, and a place where the terms of
the gang stand. So far there is Volcano's: an annotation, and a PodGroup. Koordinator's annotations and the label of
scheduler-plugins are further readers. The same name in another namespace is another gang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onward.api.gang import GROUP, GROUP_NAME, TASK_SPEC, VERSION, VOLCANO_GROUP_NAME
from onward.core.gang import Gang
from onward.core.placement import Wish
from onward.core.podgroup import Census, begun
from onward.core.turns import DEFAULT_QUEUE
from onward.kube.objects import Obj, Resource, key_of, namespace_of, read_stamp, uid_of
from onward.scheduler import views

POD_GROUPS = Resource(GROUP, VERSION, "podgroups", "PodGroup")
QUEUES = Resource(GROUP, VERSION, "queues", "Queue", namespaced=False)


def _volcano(pod: Obj) -> str:
    found = views.said(pod)
    return found.get(GROUP_NAME) or found.get(VOLCANO_GROUP_NAME) or ""


READERS: tuple[Callable[[Obj], str], ...] = (_volcano,)


def gang_of(pod: Obj) -> str:
    """`namespace/name` of its gang; empty: it is by itself."""
    name = next((found for reader in READERS if (found := reader(pod))), "")
    return f"{namespace_of(pod)}/{name}" if name else ""


def task_of(pod: Obj) -> str:
    return views.said(pod).get(TASK_SPEC, "")


@dataclass
class Member:
    """A pod that the scheduler knows."""

    pod: Obj
    wish: Wish
    gang: str

    @property
    def uid(self) -> str:
        return uid_of(self.pod)

    @property
    def leaving(self) -> bool:
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def phase(self) -> str:
        return str((self.pod.get("status") or {}).get("phase") or "")

    @property
    def node(self) -> str:
        return str(self.pod["spec"].get("nodeName") or "")

    @property
    def created(self) -> float:
        return read_stamp(self.pod["metadata"].get("creationTimestamp")) or 0.0


@dataclass
class Terms:
    """What the PodGroup of a gang says."""

    min_member: int
    min_task: Mapping[str, int]
    queue: str
    priority_class: str
    min_resources: Mapping[str, int]
    created: float

    @staticmethod
    def of(group: Obj) -> Terms:
        spec = group.get("spec") or {}
        return Terms(
            min_member=int(spec.get("minMember") or 0),
            min_task={str(k): int(v) for k, v in (spec.get("minTaskMember") or {}).items()},
            queue=str(spec.get("queue") or DEFAULT_QUEUE),
            priority_class=str(spec.get("priorityClassName") or ""),
            min_resources=views.amounts(spec.get("minResources")),
            created=read_stamp(group["metadata"].get("creationTimestamp")) or 0.0,
        )


@dataclass
class Roll:
    """Every pod by its gang. Those that wait for us are kept apart: to look at them is not to look at all."""

    members: dict[str, Member] = field(default_factory=dict)
    gangs: dict[str, dict[str, Member]] = field(default_factory=dict)
    waiting: dict[str, dict[str, Member]] = field(default_factory=dict)  # by gang, or by pod for one by itself

    def enter(self, member: Member, waits: bool) -> None:
        key = key_of(member.pod)
        self.strike(key)
        self.members[key] = member
        if member.gang:
            self.gangs.setdefault(member.gang, {})[key] = member
        if waits:
            self.waiting.setdefault(member.gang or key, {})[key] = member

    def strike(self, key: str) -> Member | None:
        member = self.members.pop(key, None)
        if member is not None:
            for lists, name in ((self.gangs, member.gang), (self.waiting, member.gang or key)):
                there = lists.get(name)
                if there is not None:
                    there.pop(key, None)
                    if not there:
                        del lists[name]
        return member

    def held(self, gang: str, assumed: Mapping[str, str]) -> list[Member]:
        """Those with a node, or about to have one, that count for the gang."""
        found = self.gangs.get(gang, {}).items()
        return [m for key, m in found if (m.node or key in assumed) and not m.leaving and not views.finished(m.pod)]

    def census(self, gang: str, assumed: Mapping[str, str]) -> Census:
        every = self.gangs.get(gang, {})
        phases = [m.phase for m in every.values()]
        held = self.held(gang, assumed)
        return Census(
            pending=sum(not m.node and key not in assumed and not m.leaving for key, m in every.items()),
            held=len(held),
            running=sum(m.phase == "Running" for m in held),
            succeeded=phases.count("Succeeded"),
            failed=phases.count("Failed"),
        )

    def scheduler(self, gang: str) -> str:
        """The name under which its pods know us."""
        every = self.gangs.get(gang, {}).values()
        return next((str(m.pod["spec"].get("schedulerName") or "") for m in every), "")

    def was_whole(self, gang: str, min_member: int) -> bool:
        """As many as it needs have had a node, whatever became of them since."""
        every = self.gangs.get(gang, {}).values()
        return min_member > 0 and sum(bool(m.node) for m in every) >= min_member

    def gang(
        self, key: str, terms: Terms | None, phase: str, priorities: Mapping[str, int], assumed: Mapping[str, str]
    ) -> Gang:
        """As `core` wants to see it. Without terms: a pod by itself."""
        waiting = [m for k, m in self.waiting[key].items() if k not in assumed]
        priority = max((int(m.pod["spec"].get("priority") or 0) for m in waiting), default=0)
        since = min((m.created for m in waiting), default=0.0)
        pending = [m.wish for m in waiting]
        if terms is None:
            return Gang(key, pending, priority=priority, created=since, since=since, single=True)
        counted = [*self.held(key, assumed)]
        counted += [m for m in self.gangs.get(key, {}).values() if m.phase == "Succeeded"]
        tasks: dict[str, int] = {}
        for member in counted:
            tasks[member.wish.task] = tasks.get(member.wish.task, 0) + 1
        return Gang(
            key,
            pending,
            min_member=terms.min_member,
            min_task=terms.min_task,
            held=len(counted),
            held_tasks=tasks,
            started=begun(phase, len(counted)) or self.was_whole(key, terms.min_member),
            priority=priorities.get(terms.priority_class, priority) if terms.priority_class else priority,
            created=terms.created,
            since=since,
            queue=terms.queue,
        )


def phase_of(group: Obj) -> str:
    return str((group.get("status") or {}).get("phase") or "")
