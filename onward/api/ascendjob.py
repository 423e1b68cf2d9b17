"""AscendJob (`mindxdl.gitee.com/v1`): from the object that a user applied to a `Job`, or to all that is wrong with it.

Defaults and checks are those of the original, with its Reasons; what it would silently ignore is refused here. Nothing
is written back: defaults live in the `Job` only, so the user's object stays as the user wrote it.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from onward.api import fields, marks
from onward.api.crds import crds
from onward.api.job import (
    MINDSPORE,
    PYTORCH,
    TENSORFLOW,
    Job,
    Note,
    Obj,
    Problem,
    Replica,
    RunPolicy,
    Scheduling,
    is_device,
)
from onward.api.marks import Marks, not_one_of
from onward.core import quantity
from onward.core.policy import did_you_mean

GROUP, VERSION, KIND, PLURAL = "mindxdl.gitee.com", "v1", "AscendJob", "ascendjobs"
API_VERSION = f"{GROUP}/{VERSION}"

CONTAINER = "ascend"
PORT_NAME, PORT = "ascendjob-port", 2222
MANAGER_PORT_NAME, MANAGER_PORT = "taskd-port", 9601
VOLCANO = "volcano"
DEFAULT_QUEUE = "default"
MOST_REPLICAS = 20000
LONGEST_NAME = 63  # of a service, and of what stands in a label
LEADERS = {PYTORCH: "Master", MINDSPORE: "Scheduler", TENSORFLOW: "Chief"}
RESTART_POLICIES = ("Never", "Always", "OnFailure", "ExitCode")
CLEAN_POLICIES = ("None", "Running", "All")


def read(
    obj: Obj, *, gang: bool = True, queues: Collection[str] | None = None, classes: Collection[str] | None = None
) -> Job | list[Problem]:
    """The job, or every problem that it has.

    `gang`: whether jobs are placed all or nothing here. `queues`, `classes` (of priority): those that exist, where
    somebody knows.
    """
    return _Reader(obj, gang, queues, classes).read()


@lru_cache(maxsize=1)
def _definition() -> Obj:
    return next(crd for crd in crds() if crd["spec"]["names"]["kind"] == KIND)


def roles(framework: str) -> tuple[str, ...]:
    """The replica types of a framework, the leader first."""
    return (LEADERS[framework], "Worker")


class _Reader:
    def __init__(
        self, obj: Obj, gang: bool, queues: Collection[str] | None, classes: Collection[str] | None
    ) -> None:
        self.metadata = _map(obj.get("metadata"))
        self.spec = _map(obj.get("spec"))
        self.gang, self.queues, self.classes = gang, queues, classes
        self.misshapen = fields.misshapen(_definition(), {"spec": obj.get("spec")})
        self.marks = Marks(marks.texts(self.metadata.get("labels")), marks.texts(self.metadata.get("annotations")))
        self.problems, self.notes = self.marks.problems, self.marks.notes  # one list each, in the order of the checks

    def read(self) -> Job | list[Problem]:
        self.marks.check()
        self._name()
        if not self.spec.get("replicaSpecs"):
            self._problem("InvalidSpecs", "replicaSpecs is not set; write at least the leader, such as Master", "spec")
        success = self.spec.get("successPolicy") or ""
        if success not in ("", "AllWorkers"):
            what = f'successPolicy is {success!r}, but must be "" or AllWorkers'
            self._problem("InvalidSuccessPolicy", what, "spec", "successPolicy")
        framework = self._framework()
        before = len(self.problems)
        replicas = self._replicas(framework)
        known = len(self.problems) == before  # else nobody knows how many pods there are
        run, scheduling = self._run(), self._scheduling(replicas, known)
        recovery = self.marks.recovery()
        if self.problems:
            return self.problems
        if recovery.in_process:
            self._manager_port(replicas)
        self._devices(replicas)
        labels = self.marks.labels
        return Job(
            api_version=API_VERSION,
            kind=KIND,
            name=str(self.metadata.get("name") or ""),
            namespace=str(self.metadata.get("namespace") or "default"),
            uid=str(self.metadata.get("uid") or ""),
            framework=framework,
            replicas=tuple(replicas),
            run=run,
            scheduling=scheduling,
            recovery=recovery,
            labels=labels,
            annotations=self.marks.annotations,
            app=labels.get("app", "") if "jobID" in labels else "",
            notes=tuple(self.notes),
        )

    def _name(self) -> None:
        name = str(self.metadata.get("name") or "")
        if not name:
            return  # not submitted yet: generateName, or a fragment
        leader = LEADERS.get(self.marks.labels.get(marks.FRAMEWORK, ""), LEADERS[MINDSPORE])
        longest = LONGEST_NAME - len(f"-{leader}-0")
        if len(name) > longest or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            allowed = f"use up to {longest} lower-case letters, digits and dashes, a letter first"
            what = f"the name {name!r} cannot be that of a service; {allowed}"
            self._problem("InvalidName", what, "metadata", "name")

    def _framework(self) -> str:
        known = ",".join(LEADERS)
        value = self.marks.labels.get(marks.FRAMEWORK, "").strip()
        if not value:
            self._problem(
                "InvalidFramework", f"framework label is not set, choose one of {known}", "metadata", "labels"
            )
        elif value not in LEADERS:
            self._problem(
                "InvalidFramework",
                f"framework label<{value}> is not in {{{known}}}{did_you_mean(value, LEADERS)}",
                "metadata", "labels", marks.FRAMEWORK,
            )  # fmt: skip
        else:
            return value
        return ""

    def _replicas(self, framework: str) -> list[Replica]:
        specs = self.spec.get("replicaSpecs")
        allowed = roles(framework) if framework else tuple(dict.fromkeys((*LEADERS.values(), "Worker")))
        found: dict[str, Replica | None] = {}  # None: it is there, but wrong
        for written, spec in _map(specs).items():
            at = ("spec", "replicaSpecs", str(written))
            name = next((role for role in allowed if role.lower() == str(written).lower()), None)
            if name is None:
                self._problem("InvalidReplicaType", f"replicaType {not_one_of(written, allowed)}", *at)
                self._replica(str(written), spec, at)  # its other problems are told too
            elif name in found:
                self._problem("InvalidReplicaType", f"{name} is written twice, in two spellings", *at)
            else:
                found[name] = self._replica(name, spec, at)
        if framework and found:
            self._leader(framework, found)
        return [replica for role in allowed if (replica := found.get(role)) is not None]

    def _replica(self, name: str, spec: Any, at: tuple[str, ...]) -> Replica | None:
        before = len(self.problems)
        if not spec:
            self._problem("InvalidReplicaSpec", f"{name} replicaSpec is not set", *at)
            return None
        if self._is_misshapen(at, "InvalidReplicaSpec"):
            return None
        leader = name in LEADERS.values()
        count = self._count(name, spec.get("replicas"), leader, at)
        policy = spec.get("restartPolicy") or "Never"
        if policy not in RESTART_POLICIES:
            what = f"{name} restartPolicy {not_one_of(policy, RESTART_POLICIES)}"
            self._problem("InvalidReplicaSpec", what, *at, "restartPolicy")
        template = copy.deepcopy(dict(_map(spec.get("template"))))
        self._containers(name, template, at)
        if len(self.problems) > before:
            return None
        own = template["spec"].get("restartPolicy")
        if own and own != policy:
            self._note(
                "SettedPodTemplateRestartPolicy",
                f"restartPolicy {own} in the pod template of {name} is overridden by the replica's own, {policy}",
            )
        if policy == "Always" and "jobID" not in self.marks.labels:
            what = f"pods of {name} start again also when they have ended well, as restartPolicy Always says"
            self._note("NeverSucceeds", f"{what}, so the job never succeeds; write OnFailure, or Never")
        replica = Replica(name, count, policy, template, CONTAINER, leader)
        if leader and not any(p.get("name") == PORT_NAME for p in replica.main.get("ports") or ()):
            replica.main["ports"] = [*(replica.main.get("ports") or ()), {"name": PORT_NAME, "containerPort": PORT}]
        return replica

    def _count(self, name: str, given: Any, leader: bool, at: tuple[str, ...]) -> int:
        count: int = 1 if given is None else given
        if count < 0:
            what = f"cannot be negative, got {count}"
        elif count > MOST_REPLICAS:
            what = f"cannot be larger than {MOST_REPLICAS}, got {count}"
        elif leader and count != 1:
            what = f"must be only 1, got {count}"
        else:
            return count
        self._problem("InvalidReplicaSpec", f"{name} replicas {what}", *at, "replicas")
        return 1

    def _containers(self, name: str, template: Obj, at: tuple[str, ...]) -> None:
        spec = _map(template.get("spec"))
        containers: list[Obj] = spec.get("containers") or []
        where = (*at, "template", "spec", "containers")
        if not containers:
            self._problem("InvalidReplicaSpec", f"{name} containers is undefined", *at, "template")
            return
        mains = [i for i, c in enumerate(containers) if c.get("name") == CONTAINER]
        if not mains:
            given = [str(c.get("name")) for c in containers]
            what = (
                f"{name} has no container named {CONTAINER}, as the one that trains is called (only {', '.join(given)})"
            )
            self._problem("InvalidContainer", what, *where)
        elif not containers[mains[0]].get("image"):
            self._problem("InvalidContainer", f"{name} container {CONTAINER}: Image is undefined", *where, mains[0])
        for i, container in enumerate(containers):
            for j, port in enumerate(container.get("ports") or ()):
                if not 1 <= port["containerPort"] <= 65535:
                    what = f"{name} containerPort {port['containerPort']} is not a port; give 1 to 65535"
                    self._problem("InvalidContainer", what, *where, i, "ports", j, "containerPort")
        self._quantities(name, spec, (*at, "template", "spec"))

    def _quantities(self, name: str, spec: Mapping[str, Any], at: tuple[str, ...]) -> None:
        for where in ("containers", "initContainers"):
            for i, container in enumerate(spec.get(where) or ()):
                resources = _map(container.get("resources"))
                limits = _map(resources.get("limits"))
                for kind in ("requests", "limits"):
                    for resource, value in _map(resources.get(kind)).items():
                        why = _why_no_amount(str(resource), value, limits.get(resource))
                        if why:
                            path = (*at, where, i, "resources", kind, str(resource))
                            self._problem("InvalidReplicaSpec", f"{name} {kind} {resource}: {why}", *path)

    def _leader(self, framework: str, found: Mapping[str, Replica | None]) -> None:
        leader = LEADERS[framework]
        if leader in found:
            return
        if framework != MINDSPORE:
            what = f"needs 1 leader: {leader} for {framework}; add it to replicaSpecs with replicas: 1"
            self._problem("InvalidReplicaType", what, "spec", "replicaSpecs")
            return
        worker = found.get("Worker")
        asked = worker.count * worker.device[1] if worker else 0
        if asked > 1:
            what = f"without {leader} the workers' request must be 1 accelerator, got {asked}; add {leader}"
            self._problem("InvalidReplicaSpec", what, "spec", "replicaSpecs")

    def _run(self) -> RunPolicy:
        given = _map(self.spec.get("runPolicy"))
        if self._is_misshapen(("spec", "runPolicy"), "InvalidRunPolicy"):
            return RunPolicy()
        clean = given.get("cleanPodPolicy") or "Running"
        if clean not in CLEAN_POLICIES:
            what = f"cleanPodPolicy {not_one_of(clean, CLEAN_POLICIES)}"
            self._problem("InvalidRunPolicy", what, "spec", "runPolicy", "cleanPodPolicy")
        limit = self._number(given, "backoffLimit", None)
        return RunPolicy(
            backoff_limit=limit if limit is not None and limit > 0 else None,  # 0 and less: no limit
            clean_pods=str(clean),
            ttl_s=self._number(given, "ttlSecondsAfterFinished", 0),
            deadline_s=self._number(given, "activeDeadlineSeconds", 1),
            suspend=given.get("suspend") is True,
        )

    def _number(self, given: Mapping[str, Any], key: str, least: int | None) -> int | None:
        value = given.get(key)
        if value is None:
            return None
        if least is not None and value < least:
            what = f"{key} is {value}, but must be a whole number, {least} or more"
            self._problem("InvalidRunPolicy", what, "spec", "runPolicy", key)
        return int(value)

    def _scheduling(self, replicas: list[Replica], known: bool) -> Scheduling:
        policy = _map(_map(self.spec.get("runPolicy")).get("schedulingPolicy"))
        if any(problem.path[:2] == ("spec", "runPolicy") for problem in self.misshapen):
            return Scheduling()
        at = ("spec", "runPolicy", "schedulingPolicy")
        total = sum(replica.count for replica in replicas)
        least = policy.get("minAvailable")
        if least is None:
            least = self.marks.min_available()
        if least is not None and least < 1:
            what = f"minAvailable is {least}, but must be a whole number, 1 or more"
            self._problem("InvalidMinAvailable", what, *at, "minAvailable")
            least = None
        if least is not None and known and least > total:
            what = f"minAvailable {least} is more than the {total} pods of the job; it could never start"
            self._problem("InvalidMinAvailable", what, *at, "minAvailable")
        queue = str(policy.get("queue") or DEFAULT_QUEUE)
        if self.gang and self.queues is not None and policy and queue not in self.queues:
            what = f"queue {queue!r} does not exist{did_you_mean(queue, self.queues)}"
            self._problem("InvalidQueue", what, *at, "queue")
        rank = str(policy.get("priorityClass") or "")
        if self.gang and self.classes is not None and rank and rank not in self.classes:
            what = f"priorityClass {rank!r} does not exist{did_you_mean(rank, self.classes)}"
            self._problem("InvalidPriorityClass", what, *at, "priorityClass")
        resources = marks.texts(policy.get("minResources"))
        for name, value in resources.items():
            why = _why_no_amount(name, value)
            if why:
                self._problem("InvalidRunPolicy", f"minResources {name}: {why}", *at, "minResources", name)
        scheduler = self._scheduler(replicas)
        return Scheduling(
            scheduler=scheduler,
            gang=self.gang,
            min_available=total if least is None else least,
            queue=queue,
            priority_class=rank,
            min_resources=resources,
        )

    def _scheduler(self, replicas: list[Replica]) -> str:
        given = str(self.spec.get("schedulerName") or "")
        if not self.gang:
            if given:
                what = f"schedulerName {given} has no effect, because gang scheduling is off"
                self._note("SettedJobSchedulerName", what)
            return ""
        name = given or VOLCANO
        if name != VOLCANO:
            self._note("SettedJobSchedulerName", f"pods are placed by {name}, which must understand Volcano's PodGroup")
        for replica in replicas:
            own = replica.template["spec"].get("schedulerName")
            if own and own != name:
                what = f"the pods of {replica.name} are placed by {own}, as their template says, not by {name}"
                self._note("SettedPodTemplateSchedulerName", what)
        return name

    def _manager_port(self, replicas: list[Replica]) -> None:
        added = []
        for replica in replicas:
            ports = list(replica.main.get("ports") or ())
            tcp = [port for port in ports if (port.get("protocol") or "TCP") == "TCP"]
            if any(port.get("containerPort") == MANAGER_PORT for port in tcp):
                continue
            name = MANAGER_PORT_NAME if all(p.get("name") != MANAGER_PORT_NAME for p in ports) else "onward-port"
            replica.main["ports"] = [*ports, {"name": name, "containerPort": MANAGER_PORT}]
            added.append(replica.name)
        if added:
            where = f"port {MANAGER_PORT} ({MANAGER_PORT_NAME}) was added to {', '.join(added)}"
            self._note("PortAdded", f"{where}: the job's recovery needs it")

    def _devices(self, replicas: list[Replica]) -> None:
        asked = {replica.name: replica.device for replica in replicas if replica.device[1]}
        if len(set(asked.values())) > 1:
            listed = " and ".join(f"{name} asks for {count} {resource}" for name, (resource, count) in asked.items())
            most = max(count for _, count in asked.values())
            self._note("UnevenDevices", f"{listed}, but every pod is told that it has {most} ranks")

    def _is_misshapen(self, at: tuple[str, ...], reason: str) -> bool:
        """What has the wrong type there is told; nothing below it can be read."""
        wrong = [problem for problem in self.misshapen if problem.path[: len(at)] == at]
        for problem in wrong:
            self._problem(reason, problem.message, *problem.path)
        return bool(wrong)

    def _problem(self, reason: str, message: str, *path: str | int) -> None:
        self.problems.append(Problem(reason, message, path))

    def _note(self, reason: str, message: str) -> None:
        self.notes.append(Note(reason, message))


def _why_no_amount(resource: str, value: Any, limit: Any = None) -> str:
    """What the API server would say of it when the first pod is made, which is late."""
    try:
        given = quantity.parse(value)
    except quantity.QuantityError as e:
        return str(e)
    if given < 0:
        return f"{value} is less than nothing"
    if is_device(resource) and given != given.to_integral_value():
        return f"{value} is not a whole number of them"
    with contextlib.suppress(quantity.QuantityError):  # of the limit: said where it stands
        if limit is not None and given > quantity.parse(limit):
            return f"{value} is more than the limit, {limit}"
    return ""


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
