"""Reading an AscendJob: defaults, every check with its Reason, all problems at once, and what is only noted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from acjobs import bad, good, job, role, seed, with_marks

from onward.api import ascendjob
from onward.core.policy import Policy

Change = Callable[[dict[str, Any]], Any]


def test_the_sample_of_the_seed() -> None:
    read = good(seed())
    assert [(r.name, r.count, r.restart_policy, r.leader) for r in read.replicas] == [
        ("Master", 1, "Never", True),
        ("Worker", 1, "Never", False),
    ]
    assert (read.framework, read.total, read.nodes, read.world_size) == ("pytorch", 2, 2, 4)
    assert read.device == ("huawei.com/Ascend910", 2)
    assert (read.scheduling.scheduler, read.scheduling.min_available, read.scheduling.queue) == (
        "volcano",
        2,
        "default",
    )
    assert [note.message.partition(":")[0] for note in read.notes] == [
        "ring-controller.atlas",
        "huawei.com/schedule_policy",
    ]


def test_nothing_is_written_back_and_no_field_is_lost() -> None:
    given = seed()
    given["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["fieldOfTheFuture"] = {"a": [1]}
    before = copy.deepcopy(given)
    read = good(given)
    assert given == before
    assert read.replica("worker").template["spec"]["fieldOfTheFuture"] == {"a": [1]}


def test_defaults() -> None:
    worker = role()
    del worker["replicas"]
    read = good(job(Master=role(), Worker=worker))
    assert read.replica("Worker").count == 1
    assert read.replica("Master").main["ports"] == [{"name": "ascendjob-port", "containerPort": 2222}]
    assert "ports" not in read.replica("Worker").main
    assert (read.run.clean_pods, read.run.backoff_limit, read.run.ttl_s, read.run.deadline_s) == (
        "Running",
        None,
        None,
        None,
    )
    assert (read.scheduling.scheduler, read.scheduling.min_available) == ("volcano", 2)
    assert read.recovery.strategies == ()
    assert not read.notes


def test_pods_that_always_start_again_never_succeed_and_that_is_said() -> None:
    always = {**role(), "restartPolicy": "Always"}
    (note,) = good(job(Master=role(), Worker=always)).notes
    assert (note.reason, note.message.partition(",")[0]) == (
        "NeverSucceeds",
        "pods of Worker start again also when they have ended well",
    )
    serves = job(Master=role(), Worker=always)
    serves["metadata"]["labels"] |= {"jobID": "j", "app": "a"}
    assert not good(serves).notes


def test_lower_case_roles_are_accepted() -> None:
    assert [r.name for r in good(job(worker=role(3), master=role())).replicas] == ["Master", "Worker"]


def _set(*path: str, value: Any) -> Change:
    def change(obj: dict[str, Any]) -> None:
        for key in path[:-1]:
            obj = obj.setdefault(key, {})
        obj[path[-1]] = value

    return change


def _drop(*path: str) -> Change:
    def change(obj: dict[str, Any]) -> None:
        for key in path[:-1]:
            obj = obj[key]
        del obj[path[-1]]

    return change


def _container(**values: Any) -> Change:
    def change(obj: dict[str, Any]) -> None:
        obj["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"][0] |= values

    return change


def _label(key: str, value: Any) -> Change:
    return _set("metadata", "labels", key, value=value)


def _annotation(key: str, value: Any) -> Change:
    return _set("metadata", "annotations", key, value=value)


ROLES = ("spec", "replicaSpecs")
POLICY = ("spec", "runPolicy")
WRONG: list[tuple[str, Change, str, str]] = [
    ("scaling rule alone", _label("mind-cluster/scaling-rule", "r"), "InvalidScalingConfig", "mind-cluster/group-name"),
    ("scale-out type", _label("scaleout-type", "ROCK"), "InvalidScaleOutConfig", "did you mean 'ROCE'?"),
    ("no replicaSpecs", _drop(*ROLES), "InvalidSpecs", "replicaSpecs is not set"),
    ("no spec", _drop("spec"), "InvalidSpecs", "replicaSpecs is not set"),
    ("success policy", _set("spec", "successPolicy", value="Any"), "InvalidSuccessPolicy", "AllWorkers"),
    ("no framework", _drop("metadata", "labels", "framework"), "InvalidFramework",
     "framework label is not set, choose one of pytorch,mindspore,tensorflow"),
    ("framework", _label("framework", "pytroch"), "InvalidFramework", "did you mean 'pytorch'?"),
    ("role", _set(*ROLES, "Workers", value=role()), "InvalidReplicaType", "did you mean 'Worker'?"),
    ("role of another framework", _set(*ROLES, "Chief", value=role()), "InvalidReplicaType", "Master, Worker"),
    ("role twice", _set(*ROLES, "master", value=role()), "InvalidReplicaType", "twice"),
    ("role empty", _set(*ROLES, "Worker", value=None), "InvalidReplicaSpec", "Worker replicaSpec is not set"),
    ("replicas -1", _set(*ROLES, "Worker", "replicas", value=-1), "InvalidReplicaSpec", "cannot be negative, got -1"),
    ("replicas 20001", _set(*ROLES, "Worker", "replicas", value=20001), "InvalidReplicaSpec",
     "cannot be larger than 20000, got 20001"),
    ("replicas text", _set(*ROLES, "Worker", "replicas", value="2"), "InvalidReplicaSpec", "whole number"),
    ("no containers", _set(*ROLES, "Worker", "template", "spec", "containers", value=[]), "InvalidReplicaSpec",
     "containers is undefined"),
    ("no template", _drop(*ROLES, "Worker", "template"), "InvalidReplicaSpec", "containers is undefined"),
    ("two leaders", _set(*ROLES, "Master", "replicas", value=2), "InvalidReplicaSpec", "must be only 1"),
    ("no image", _container(image=""), "InvalidContainer", "Image is undefined"),
    ("other name", _container(name="main"), "InvalidContainer", "no container named ascend"),
    ("number in env", _container(env=[{"name": "A", "value": 3}]), "InvalidReplicaSpec", "value must be a text, not 3"),
    ("number in nodeSelector", _set(*ROLES, "Worker", "template", "spec", "nodeSelector", value={"gen": 3}),
     "InvalidReplicaSpec", "nodeSelector.gen must be a text, not 3"),
    ("text for seconds", _set(*ROLES, "Worker", "template", "spec", "terminationGracePeriodSeconds", value="5"),
     "InvalidReplicaSpec", "terminationGracePeriodSeconds must be a whole number"),
    ("quantity", _container(resources={"limits": {"cpu": "much"}}), "InvalidReplicaSpec", "'much' is not a quantity"),
    ("below 0", _container(resources={"requests": {"cpu": "-1"}}), "InvalidReplicaSpec", "less than nothing"),
    ("part of a device", _container(resources={"limits": {"nvidia.com/gpu": "500m"}}), "InvalidReplicaSpec",
     "limits nvidia.com/gpu: 500m is not a whole number of them"),
    ("above its limit", _container(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
     "InvalidReplicaSpec", "requests memory: 2Gi is more than the limit, 1Gi"),
    ("below a wrong limit", _container(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "x"}}),
     "InvalidReplicaSpec", "limits memory: 'x' is not a quantity"),
    ("no leader", _drop(*ROLES, "Master"), "InvalidReplicaType", "needs 1 leader: Master for pytorch"),
    ("restart policy", _set(*ROLES, "Worker", "restartPolicy", value="onFailure"), "InvalidReplicaSpec",
     "did you mean 'OnFailure'?"),
    ("clean policy", _set(*POLICY, "cleanPodPolicy", value="all"), "InvalidRunPolicy", "did you mean 'All'?"),
    ("deadline", _set(*POLICY, "activeDeadlineSeconds", value=0), "InvalidRunPolicy", "1 or more"),
    ("ttl", _set(*POLICY, "ttlSecondsAfterFinished", value=-1), "InvalidRunPolicy", "0 or more"),
    ("backoff", _set(*POLICY, "backoffLimit", value="3"), "InvalidRunPolicy", "whole number"),
    ("min above", _set(*POLICY, "schedulingPolicy", value={"minAvailable": 3}), "InvalidMinAvailable",
     "minAvailable 3 is more than the 2 pods"),
    ("min 0", _set(*POLICY, "schedulingPolicy", value={"minAvailable": 0}), "InvalidMinAvailable", "1 or more"),
    ("min by annotation", _annotation("huawei.com/schedule_minAvailable", "x"), "InvalidMinAvailable", "whole number"),
    ("queue", _set(*POLICY, "schedulingPolicy", value={"queue": "fast"}), "InvalidQueue", "'fast' does not exist"),
    ("priority class", _set(*POLICY, "schedulingPolicy", value={"priorityClass": "urgnt"}), "InvalidPriorityClass",
     "'urgnt' does not exist; did you mean 'urgent'?"),
    ("min resources", _set(*POLICY, "schedulingPolicy", value={"minResources": {"cpu": "?"}}), "InvalidRunPolicy",
     "not a quantity"),
    ("min resources below 0", _set(*POLICY, "schedulingPolicy", value={"minResources": {"cpu": "-2"}}),
     "InvalidRunPolicy", "minResources cpu: -2 is less than nothing"),
    ("strategy", _annotation("recover-strategy", "retry,recver"), "InvalidRecoverStrategy", "did you mean 'recover'?"),
    ("wait", _annotation("wait-reschedule-timeout", "soon"), "InvalidWaitRescheduleTimeout", "'soon'"),
    ("fault scheduling", _label("fault-scheduling", "gracefull"), "InvalidFaultScheduling", "grace, force, off"),
    ("sub-health", _label("subHealthyStrategy", "hotswitch"), "InvalidSubHealthyStrategy", "did you mean 'hotSwitch'?"),
    ("retry times", _label("fault-retry-times", "three"), "InvalidFaultRetryTimes", "'three'"),
    ("retry times below 0", _label("fault-retry-times", "-1"), "InvalidFaultRetryTimes", "0 or more"),
    ("pod rescheduling", _label("pod-rescheduling", "yes"), "InvalidPodRescheduling", "on, off"),
    ("recovery rests", _label("process-recover-enable", "of"), "InvalidProcessRecoverEnable", "did you mean 'off'?"),
    ("recovery path", _annotation("huawei.com/recover_policy_path", "pods"), "InvalidRecoverPolicyPath",
     "did you mean 'pod'?"),
    ("fault filter", _annotation("huawei.com/schedule.filter.faultCode", "80C:x"), "InvalidFaultFilter",
     "CODE:SECONDS"),
    ("name with dots", _set("metadata", "name", value="a.b"), "InvalidName", "a.b"),
    ("no name of a service", _set("metadata", "name", value="9x"), "InvalidName", "a letter first"),
    ("long name", _set("metadata", "name", value="x" * 55), "InvalidName", "up to 54"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason", "text"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_one_mistake_one_problem(change: Change, reason: str, text: str) -> None:
    given = job()
    change(given)
    problems = bad(given, queues=["default"], classes=["urgent"])
    assert [p.reason for p in problems] == [reason], [str(p) for p in problems]
    assert text in problems[0].message
    assert str(problems[0]).startswith(f"{reason}: ")


def test_all_problems_at_once() -> None:
    given = job()
    changes = [
        change for name, change, *_ in WRONG if name in ("success policy", "replicas -1", "other name", "strategy")
    ]
    for change in changes:
        change(given)
    reasons = [p.reason for p in bad(given)]
    assert sorted(reasons) == [
        "InvalidContainer",
        "InvalidRecoverStrategy",
        "InvalidReplicaSpec",
        "InvalidSuccessPolicy",
    ]


@pytest.mark.parametrize("nonsense", [{}, {"spec": None}, {"spec": 3}, {"metadata": [], "spec": {"replicaSpecs": []}}])
def test_any_shape_is_answered(nonsense: dict[str, Any]) -> None:
    assert {"InvalidSpecs", "InvalidFramework"} <= {p.reason for p in bad(nonsense)}


@pytest.mark.parametrize(
    ("workers", "devices", "fits"),
    [(1, 1, True), (1, 0, True), (4, 0, True), (2, 1, False), (1, 2, False)],
)
def test_mindspore_without_a_scheduler(workers: int, devices: int, fits: bool) -> None:
    given = job("mindspore", Worker=role(workers, devices))
    if fits:
        assert good(given).leader is None
    else:
        assert [p.reason for p in bad(given)] == ["InvalidReplicaSpec"]


@pytest.mark.parametrize(
    ("framework", "leader"), [("pytorch", "Master"), ("mindspore", "Scheduler"), ("tensorflow", "Chief")]
)
def test_roles_of_each_framework(framework: str, leader: str) -> None:
    read = good(job(framework))
    assert [(r.name, r.leader) for r in read.replicas] == [(leader, True), ("Worker", False)]


def test_recovery_is_read_and_numbers_need_no_quotes() -> None:
    labels = {"fault-scheduling": "grace", "fault-retry-times": 3, "pod-rescheduling": "on"}
    given = with_marks(job(), labels, recover_strategy=" dump , retry,recover", wait_reschedule_timeout=60)
    given["metadata"]["annotations"]["huawei.com/schedule.filter.faultCode"] = "80C98009, 8C1F8609:5"
    recovery = good(given).recovery
    assert recovery.strategies == (Policy.RETRY, Policy.RECOVER, Policy.DUMP, Policy.EXIT)
    assert (recovery.fault_scheduling, recovery.fault_retry_times, recovery.pod_rescheduling) == ("grace", 3, True)
    assert recovery.wait_reschedule_s == 60
    assert recovery.silenced == (("80C98009", 60), ("8C1F8609", 5))


def test_a_recovery_that_rests() -> None:
    given = with_marks(job(), {"process-recover-enable": "off"}, recover_strategy="recover")
    read = good(given)
    assert read.recovery.strategies == ()
    assert "rest" in read.notes[0].message


@pytest.mark.parametrize(
    ("labels", "annotations", "says"),
    [
        ({"tor-affinity": "large-model-schema"}, {}, "tor-affinity: it is copied to the PodGroup"),
        ({"ring-controller.atlas": "ascend-910b"}, {}, "ring-controller.atlas: it stays on the pods"),
        ({"fault-scheduling": "external-grace"}, {}, "pods are left to somebody else"),
        ({"elastic-scheduling": "on"}, {}, "elastic-training"),
        ({}, {"huawei.com/schedule_policy": "chip8-node8"}, "huawei.com/schedule_policy: it is copied"),
        ({}, {"huawei.com/schedule.filter.faultLevel": "L2:5"}, "by code here"),
        ({}, {"sp-block": "16", "sp-fit": "idlest"}, "sp-block, sp-fit: it is copied"),
        ({}, {"ProcessRecoverStrategy": "recover"}, "no platform is asked here"),
        ({}, {"wait-reschedule-timeout": "5"}, "taken as it is"),
    ],
)
def test_what_does_something_else_here_is_said_once(
    labels: dict[str, str], annotations: dict[str, str], says: str
) -> None:
    given = with_marks(job(), labels)
    given["metadata"]["annotations"] |= annotations
    assert [says in note.message for note in good(given).notes] == [True]


@pytest.mark.parametrize("label", [{"tor-affinity": "null"}, {"tor-affinity": ""}, {"team": "a"}])
def test_what_asks_for_nothing_is_not_worth_a_word(label: dict[str, str]) -> None:
    assert not good(with_marks(job(), label)).notes


@pytest.mark.parametrize(
    ("marks", "port"),
    [({"recover_strategy": "recover"}, True), ({}, False)],
)
def test_the_port_of_the_manager_is_added_where_a_policy_needs_it(marks: dict[str, str], port: bool) -> None:
    read = good(with_marks(job(), **marks))
    for replica in read.replicas:
        assert any(p["containerPort"] == 9601 for p in replica.main.get("ports", ())) is port
    assert [note.reason for note in read.notes] == (["PortAdded"] if port else [])


def test_a_port_that_is_there_is_not_added_again() -> None:
    ports = {"ports": [{"containerPort": 9601, "name": "taskd-port"}]}
    given = job(Master=role(container=ports), Worker=role(container=ports))
    read = good(with_marks(given, {"subHealthyStrategy": "hotSwitch"}))
    assert [p["containerPort"] for p in read.replica("Master").main["ports"]] == [9601, 2222]
    assert not read.notes
    other = {"ports": [{"containerPort": 9601, "name": "beats", "protocol": "UDP"}]}
    read = good(with_marks(job(Master=role(container=other)), recover_strategy="recover"))
    assert [p["name"] for p in read.replica("Master").main["ports"]] == ["beats", "ascendjob-port", "taskd-port"]


def test_schedulers() -> None:
    given = job()
    given["spec"]["schedulerName"] = "koord-scheduler"
    given["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["schedulerName"] = "mine"
    read = good(given)
    assert read.scheduling.scheduler == "koord-scheduler"
    assert [n.reason for n in read.notes] == ["SettedJobSchedulerName", "SettedPodTemplateSchedulerName"]
    off = good(given, gang=False)
    assert (off.scheduling.scheduler, off.scheduling.gang) == ("", False)


def test_a_job_that_serves() -> None:
    read = good(with_marks(job(), {"jobID": "j7", "app": "mindie-ms-server"}))
    assert read.app == "mindie-ms-server"
    assert good(with_marks(job(), {"app": "x"})).app == ""


@pytest.mark.parametrize(
    ("resource", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("huawei.com/Ascend910", True),
        ("huawei.com/Ascend910-2c", True),
        ("huawei.com/npu-core", False),
        ("nvidia.com/mig-1g.5gb", True),
        ("google.com/tpu", True),
        ("koordinator.sh/gpu-core", False),
        ("rdma/hca", False),
        ("memory", False),
        ("hugepages-2Mi", False),
    ],
)
def test_what_ranks_run_on(resource: str, counts: bool) -> None:
    read = good(job(Master=role(devices=4, device=resource), Worker=role(devices=4, device=resource)))
    assert read.device == ((resource, 4) if counts else ("", 0))
    assert read.world_size == (8 if counts else 2)


@pytest.mark.parametrize(("leader", "worker", "ranks", "nodes"), [
    (8, 8, [0, 1, 2], 3),
    (0, 8, [0, 0, 1], 2),  # a leader without devices holds no ranks
    (0, 0, [0, 1, 2], 3),
])  # fmt: skip
def test_node_ranks(leader: int, worker: int, ranks: list[int], nodes: int) -> None:
    read = good(job(Master=role(devices=leader), Worker=role(2, worker)))
    found = [read.node_rank(r, i) for r in read.replicas for i in range(r.count)]
    assert (found, read.nodes) == (ranks, nodes)


def test_pods_with_different_numbers_of_devices_are_told_of() -> None:
    (note,) = good(job(Master=role(devices=4), Worker=role(devices=8))).notes
    asked = "Master asks for 4 huawei.com/Ascend910 and Worker asks for 8 huawei.com/Ascend910"
    assert (note.reason, note.message) == ("UnevenDevices", f"{asked}, but every pod is told that it has 8 ranks")
    assert not good(job(Master=role(), Worker=role(devices=8))).notes, "a leader without devices holds no ranks"


def test_the_names_of_the_api() -> None:
    assert (ascendjob.API_VERSION, ascendjob.KIND) == ("mindxdl.gitee.com/v1", "AscendJob")
