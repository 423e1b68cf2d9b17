"""The one job that everything after the API is about, whatever kind of object it was written as.

Kinds are read into it (`ascendjob.read`); pods, services and gangs are made from it (`pods`). Pod templates stay plain
dicts, so that a field we have never heard of survives.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onward.core import quantity
from onward.core.policy import Policy

Obj = dict[str, Any]

PYTORCH, MINDSPORE, TENSORFLOW = "pytorch", "mindspore", "tensorflow"
_ACCELERATOR = re.compile(
    r"(?:gpu|npu|tpu|xpu|dcu|i915|xe|mlu\w*|gaudi\d*|neuron(?:device|core)?|mig-[\w.]+|Ascend[\w.-]*)(?:\.shared)?"
)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an object: a Reason in one word, a sentence, and where it stands."""

    reason: str
    message: str
    path: tuple[str | int, ...] = ()  # of the field, for `onward validate`

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True)
class Note:
    """Something that was accepted and does not do what it does elsewhere: a Reason in one word, and a sentence."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Replica:
    """Pods of one role: `Master`, `Worker` and so on."""

    name: str  # as it is written in the original's words, camel case
    count: int
    restart_policy: str  # Never, Always, OnFailure or ExitCode
    template: Obj  # a pod template with every field that the user wrote
    container: str = "ascend"  # the container that trains; its environment is ours to extend
    leader: bool = False  # where the others meet; exactly one pod

    @property
    def lower(self) -> str:
        return self.name.lower()

    @cached_property
    def main(self) -> Obj:
        """The container that trains."""
        containers: list[Obj] = self.template["spec"]["containers"]
        return next((c for c in containers if c.get("name") == self.container), containers[0])

    @cached_property
    def digest(self) -> str:
        """Of the template: another one is another digest."""
        return hashlib.sha256(json.dumps(self.template, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @cached_property
    def requests(self) -> dict[str, int]:
        """What one of its pods needs, in whole units (cpu in thousandths)."""
        return quantity.pod_requests(self.template["spec"])

    @cached_property
    def device(self) -> tuple[str, int]:
        """The accelerator that the training container asks for, and how many: ("", 0) when it asks for none."""
        resources = self.main.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        found = [(name, quantity.whole(value)) for name, value in asked.items() if is_device(name)]
        return max(found, key=lambda pair: pair[1], default=("", 0))


def is_device(resource: str) -> bool:
    """An accelerator that ranks run on, one each. Shares of one, and network cards, are resources but not this."""
    vendor, _, name = resource.rpartition("/")
    return bool(vendor) and _ACCELERATOR.fullmatch(name) is not None


@dataclass(frozen=True)
class RunPolicy:
    """How a job ends, and what is left of it."""

    backoff_limit: int | None = None  # waves of pods before it fails; None: no limit
    clean_pods: str = "Running"  # which pods are deleted when it has ended: None, Running or All
    ttl_s: int | None = None  # the job itself is deleted so long after its end; None: never
    deadline_s: int | None = None  # it fails when it has been active for so long; None: never
    suspend: bool = False  # no pods for now


@dataclass(frozen=True)
class Scheduling:
    """Who places the pods, and how many must fit at once."""

    scheduler: str = ""  # schedulerName of the pods; empty: the cluster's own
    gang: bool = True  # all or nothing, by a PodGroup
    min_available: int = 1
    queue: str = ""
    priority_class: str = ""
    min_resources: Mapping[str, str] = field(default_factory=dict)  # as the user wrote it, or the sum of minMember pods


@dataclass(frozen=True)
class Recovery:
    """What is done when something breaks."""

    strategies: tuple[Policy, ...] = ()  # the ladder, cheapest first; empty: none is configured
    fault_scheduling: str = (
        ""  # pods of a bad node are replaced: grace (asked to end), force (at once), off; "": not said
    )
    grace_s: int = 900  # with grace: after so long they are deleted at once
    pod_rescheduling: bool = False  # only failed pods are replaced, not all
    pod_only: bool = False  # and never all of them, however often that fails
    fault_retry_times: int = 0  # waves of failed pods that are forgiven
    sub_healthy: str = "ignore"  # ignore, graceExit, forceExit or hotSwitch
    wait_reschedule_s: int = 270  # how long a replacement is waited for
    silenced: tuple[tuple[str, int], ...] = ()  # (fault code, seconds): such a fault is shown only

    @property
    def in_process(self) -> bool:
        """Somebody inside the pods recovers: processes are kept, and orders come from a manager."""
        return bool(self.strategies) or self.sub_healthy == "hotSwitch"


@dataclass(frozen=True)
class Job:
    """A training job, or one that serves."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str
    framework: str  # pytorch, mindspore or tensorflow
    replicas: tuple[Replica, ...]  # the leader first
    run: RunPolicy = RunPolicy()
    scheduling: Scheduling = Scheduling()
    recovery: Recovery = Recovery()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    app: str = ""  # not empty: it serves instead of training
    notes: tuple[Note, ...] = ()  # for events, one each: what was accepted, and what it does here

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def total(self) -> int:
        """Pods altogether."""
        return sum(replica.count for replica in self.replicas)

    @property
    def leader(self) -> Replica | None:
        return next((replica for replica in self.replicas if replica.leader), None)

    def replica(self, role: str) -> Replica:
        """Of this name, in any case."""
        for replica in self.replicas:
            if replica.lower == role.lower():
                return replica
        raise KeyError(f"job {self.key} has no role {role!r}")

    @cached_property
    def device(self) -> tuple[str, int]:
        """Accelerator and number per pod, of those pods that have any."""
        return max((replica.device for replica in self.replicas), key=lambda pair: pair[1], default=("", 0))

    def trains(self, replica: Replica) -> bool:
        """Whether its pods hold ranks: those with devices do. Where nobody asks for any all do, but for a scheduler of
        MindSpore, which is told that it is no worker.
        """
        if self.device[1]:
            return replica.device[1] > 0
        return not (self.framework == MINDSPORE and replica.leader and self.total > replica.count)

    @cached_property
    def nodes(self) -> int:
        """Pods that hold ranks."""
        return sum(replica.count for replica in self.replicas if self.trains(replica))

    def node_rank(self, replica: Replica, index: int) -> int:
        """Which of the pods that hold ranks this is, from 0; the leader comes first. A pod that holds none is 0."""
        before = 0
        for other in self.replicas:
            if other.name == replica.name:
                return before + index if self.trains(replica) else 0
            before += other.count if self.trains(other) else 0
        return before

    @property
    def world_size(self) -> int:
        """Ranks altogether: one for each device; one for each pod where there are no devices."""
        return self.nodes * max(self.device[1], 1)
