"""The objects a job is made of: names, labels, environment by framework and policy, placement, gang, rank table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acjobs import good, job, role, seed, with_marks

from onward.api import pods, ranktable
from onward.api.env import Surroundings
from onward.api.job import Job

HERE = Surroundings(leader_address="10.96.0.7")


def env_of(pod: dict[str, Any], container: str = "ascend") -> dict[str, str]:
    """Values as text; a field of the pod as <path>."""
    listed = next(c for c in pod["spec"]["containers"] if c["name"] == container).get("env") or []
    assert len({e["name"] for e in listed}) == len(listed), "a name is there twice"
    return {e["name"]: e["value"] if "value" in e else f"<{_field(e['valueFrom'])}>" for e in listed}


def _field(source: dict[str, Any]) -> str:
    return str(source["fieldRef"]["fieldPath"]) if "fieldRef" in source else ",".join(source)


def env(read: Job, role: str, index: int = 0, around: Surroundings = HERE) -> dict[str, str]:
    return env_of(pods.pod(read, role, index, around=around))


def two_by_eight(framework: str, **annotations: str) -> Job:
    leader = {"pytorch": "Master", "mindspore": "Scheduler", "tensorflow": "Chief"}[framework]
    given = job(framework, **{leader: role(devices=8), "Worker": role(devices=8)})
    return good(with_marks(given, **annotations))


def test_the_pods_of_the_sample() -> None:
    read = good(seed())
    pod = pods.pod(read, "Master", 0, wave=2, around=HERE)
    metadata = pod["metadata"]
    assert metadata["name"] == "default-test-pytorch-master-0"
    assert metadata["labels"] == {
        "ring-controller.atlas": "ascend-910b",
        "training.kubeflow.org/operator-name": "ascendjob-controller",
        "training.kubeflow.org/job-name": "default-test-pytorch",
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
        "group-name": "mindxdl.gitee.com",
        "job-name": "default-test-pytorch",
        "replica-type": "master",
        "replica-index": "0",
        "job-role": "master",
        "version": "2",
    }
    assert metadata["annotations"] == {
        "hccl/rankIndex": "0",
        "scheduling.k8s.io/group-name": "default-test-pytorch-c0ffee",
        "volcano.sh/task-spec": "master",
        "onward.dev/template": read.replica("Master").digest,
    }
    assert metadata["ownerReferences"][0]["kind"] == "AscendJob"
    assert metadata["ownerReferences"][0]["controller"] is True
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Never", "volcano")
    assert spec["automountServiceAccountToken"] is False
    assert spec["nodeSelector"] == {"example-key": "example-value"}
    assert [v["name"] for v in spec["volumes"]][:2] == ["code", "data"]
    assert pods.place_of(pod) == ("master", 0)
    assert pods.wave_of(pod) == 2
    found = env_of(pod)
    assert found["XDL_IP"] == "<status.hostIP>"  # the user's own
    assert found["POD_IP"] == "<status.podIP>"
    assert found["ASCEND_VISIBLE_DEVICES"] == "<metadata.annotations['huawei.com/Ascend910']>"
    assert found["LOCAL_RANK"] == "0,1"


def test_pytorch_on_two_nodes_of_eight() -> None:
    read = two_by_eight("pytorch")
    for name, number in (("Master", "0"), ("Worker", "1")):
        found = env(read, name)
        expected = {
            "MASTER_ADDR": "10.96.0.7",
            "MASTER_PORT": "2222",
            "RANK": number,
            "WORLD_SIZE": "16",
            "LOCAL_WORLD_SIZE": "8",
            "LOCAL_RANK": "0,1,2,3,4,5,6,7",
            "MINDX_TASK_ID": "u-1",
            "MINDX_SERVER_IP": "clusterd-grpc-svc.mindx-dl.svc.cluster.local",
            "MINDX_SERVER_DOMAIN": "clusterd-grpc-svc.mindx-dl.svc.cluster.local",
            "REPLICA_TYPE": name,
            "HostNetwork": "false",
            "HCCL_LOGIC_SUPERPOD_ID": "0",
            "ONWARD_NNODES": "2",
            "ONWARD_NODE_RANK": number,
            "ONWARD_NPROC_PER_NODE": "8",
            "ONWARD_JOIN_TOKEN_FILE": "/var/run/secrets/onward/token",
        }
        assert expected.items() <= found.items()
        assert "PROCESS_RECOVER" not in found


def test_mindspore_on_two_nodes_of_eight() -> None:
    read = two_by_eight("mindspore")
    leader, worker = env(read, "Scheduler"), env(read, "Worker")
    assert leader["MS_SCHED_HOST"] == "<status.podIP>"
    assert worker["MS_SCHED_HOST"] == "10.96.0.7"
    assert (leader["MS_ROLE"], worker["MS_ROLE"]) == ("MS_SCHED", "MS_WORKER")
    expected = {
        "MS_SCHED_PORT": "2222",
        "MS_NODE_RANK": "1",
        "MS_LOCAL_WORKER": "8",
        "MS_WORKER_NUM": "16",
        "MS_SERVER_NUM": "0",
        "NPU_POD": "true",
    }
    assert expected.items() <= worker.items()


def test_tensorflow_on_two_nodes_of_eight() -> None:
    read = two_by_eight("tensorflow", recover_strategy="recover")
    leader, worker = env(read, "Chief"), env(read, "Worker")
    assert leader["CM_CHIEF_IP"] == "<status.podIP>"
    expected = {
        "CM_CHIEF_IP": "10.96.0.7",
        "CM_CHIEF_PORT": "2222",
        "CM_CHIEF_DEVICE": "0",
        "CM_WORKER_IP": "<status.podIP>",
        "CM_RANK": "1",
        "CM_LOCAL_WORKER": "8",
        "CM_WORKER_SIZE": "16",
    }
    assert expected.items() <= worker.items()
    assert "PROCESS_RECOVER" not in worker


@pytest.mark.parametrize("kind", ["Ascend910", "Ascend310", "Ascend310P", "npu"])
def test_which_cards_a_pod_may_use_is_told_by_its_annotation(kind: str) -> None:
    name = f"huawei.com/{kind}"
    read = good(job(Master=role(devices=2, device=name), Worker=role(devices=2, device=name)))
    assert env(read, "Worker")["ASCEND_VISIBLE_DEVICES"] == f"<metadata.annotations['{name}']>"


@pytest.mark.parametrize(
    ("framework", "variable"),
    [("pytorch", "MASTER_PORT"), ("mindspore", "MS_SCHED_PORT"), ("tensorflow", "CM_CHIEF_PORT")],
)
def test_the_port_where_they_meet_is_the_users_own(framework: str, variable: str) -> None:
    leader = {"pytorch": "Master", "mindspore": "Scheduler", "tensorflow": "Chief"}[framework]
    ports = {"ports": [{"containerPort": 8000, "name": "other"}, {"containerPort": 3333, "name": "ascendjob-port"}]}
    read = good(job(framework, **{leader: role(container=ports), "Worker": role()}))
    assert env(read, leader)[variable] == env(read, "Worker")[variable] == "3333"


def test_where_a_pod_is_it_is_told_in_the_words_of_the_sample() -> None:
    found = env(good(job()), "Worker")
    assert (found["POD_IP"], found["XDL_IP"]) == ("<status.podIP>", "<status.hostIP>")


@pytest.mark.parametrize(
    ("annotations", "device", "told"),
    [
        ({"sp-block": "16"}, "huawei.com/Ascend910", ["0", "0", "1", "1"]),  # two pods of eight to a block
        ({"sp-block": "no number"}, "huawei.com/Ascend910", ["0", "0", "0", "0"]),
        ({}, "huawei.com/Ascend910", ["0", "0", "0", "0"]),
        ({}, "nvidia.com/gpu", [None] * 4),
    ],
)
def test_blocks_of_super_pods_are_numbered(annotations: dict[str, str], device: str, told: list[str | None]) -> None:
    given = job(Master=role(devices=8, device=device), Worker=role(3, devices=8, device=device))
    given["metadata"]["annotations"] = annotations
    read = good(given)
    pods_of = [("Master", 0), ("Worker", 0), ("Worker", 1), ("Worker", 2)]
    assert [env(read, name, index).get("HCCL_LOGIC_SUPERPOD_ID") for name, index in pods_of] == told


@pytest.mark.parametrize(
    ("device", "told"), [("huawei.com/Ascend910", "<metadata.annotations['super-pod-rank']>"), ("huawei.com/npu", "0")]
)
def test_with_soft_affinity_the_scheduler_numbers_them(device: str, told: str) -> None:
    given = with_marks(job(Master=role(devices=8, device=device)), {"super-pod-affinity": "soft"})
    assert env(good(given), "Master")["HCCL_LOGIC_SUPERPOD_ID"] == told


def test_a_pod_on_the_network_of_its_host_is_told_so() -> None:
    found = env(good(job(Master=role(), Worker=role(spec={"hostNetwork": True}))), "Worker")
    assert found["HostNetwork"] == "true"


@pytest.mark.parametrize(("devices", "told"), [(8, "true"), (0, "false")])
def test_mindspore_is_told_whether_there_are_devices(devices: int, told: str) -> None:
    read = good(job("mindspore", Scheduler=role(devices=devices), Worker=role(devices=devices)))
    assert env(read, "Worker")["NPU_POD"] == told


def test_a_job_without_accelerators_has_ranks_too() -> None:
    found = env(good(job(Master=role(), Worker=role(3))), "Worker", 2)
    expected = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "10.96.0.7"}
    assert expected.items() <= found.items()
    assert "ASCEND_VISIBLE_DEVICES" not in found
    assert "ONWARD_NPROC_PER_NODE" not in found
    assert found["ONWARD_SUB_HEALTHY_STRATEGY"] == "ignore"
    assert env(good(job("mindspore")), "Worker")["MS_LOCAL_WORKER"] == "1"
    assert env(good(job("tensorflow")), "Worker")["CM_LOCAL_WORKER"] == "1"


PYTORCH_POLICIES = [
    ("recover", {"HIGH_AVAILABILITY": "recover", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}),
    ("recover-in-place", {"HIGH_AVAILABILITY": "recover", "ENABLE_RESTART_FAULT_PROCESS": "on"}),
    ("retry", {"HIGH_AVAILABILITY": "retry", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}),
    ("dump", {"HIGH_AVAILABILITY": "dump"}),
    ("elastic-training", {"HIGH_AVAILABILITY": "elastic-training"}),
    ("retry, recover,dump", {"HIGH_AVAILABILITY": "dump,recover,retry"}),
]


@pytest.mark.parametrize(("strategies", "expected"), PYTORCH_POLICIES)
def test_pytorch_by_policy(strategies: str, expected: dict[str, str]) -> None:
    found = env(two_by_eight("pytorch", recover_strategy=strategies), "Worker")
    always = {"PROCESS_RECOVER": "on", "HCCL_ASYNC_ERROR_HANDLING": "0"}
    assert {**always, **expected}.items() <= found.items()
    assert ("ENABLE_RESTART_FAULT_PROCESS" in found) is ("in-place" in strategies)
    assert ("ELASTIC_PROCESS_RECOVER_ENABLE" in found) is (strategies != "elastic-training")


def test_exit_alone_switches_nothing_on() -> None:
    found = env(two_by_eight("pytorch", recover_strategy="exit"), "Worker")
    assert not {"PROCESS_RECOVER", "HIGH_AVAILABILITY", "HCCL_ASYNC_ERROR_HANDLING"} & found.keys()
    assert found["ONWARD_RECOVER_STRATEGY"] == "exit"


@pytest.mark.parametrize(
    ("strategies", "labels", "features"),
    [
        ("recover", {}, "{ARF:1}"),
        ("recover-in-place", {}, "{ARF:1}"),
        ("retry", {}, "{HCCE:1,UCE:1}"),
        ("dump", {"pod-rescheduling": "on"}, "{RSC:1,TTP:1}"),
        ("", {"pod-rescheduling": "on"}, "{RSC:1}"),
        ("", {"subHealthyStrategy": "hotSwitch"}, "{ARF:1}"),
        ("elastic-training", {}, None),
    ],
)
def test_mindspore_by_policy(strategies: str, labels: dict[str, str], features: str | None) -> None:
    found = env(good(with_marks(job("mindspore"), labels, recover_strategy=strategies)), "Worker")
    assert found.get("MS_ENABLE_TFT") == features
    assert found.get("ENABLE_RESTART_FAULT_PROCESS") == ("on" if "in-place" in strategies else None)
    if strategies in ("recover", "recover-in-place", "retry", "dump"):
        always = {"PROCESS_RECOVER": "on", "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"}
        assert always.items() <= found.items()


def test_what_a_user_has_listed_for_mindspore_is_merged() -> None:
    own = role(container={"env": [{"name": "MS_ENABLE_TFT", "value": "{UCE:1, MINE:1}"}]})
    read = good(with_marks(job("mindspore", Scheduler=role(), Worker=own), recover_strategy="recover"))
    assert env(read, "Worker")["MS_ENABLE_TFT"] == "{ARF:1,MINE:1,UCE:1}"


def test_a_hot_switch_needs_what_recover_needs() -> None:
    found = env(good(with_marks(job(), {"subHealthyStrategy": "hotSwitch"})), "Worker")
    expected = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1", "HIGH_AVAILABILITY": "recover"}
    assert {**expected, "ONWARD_SUB_HEALTHY_STRATEGY": "hotSwitch"}.items() <= found.items()
    assert "MINDIO_FOR_MINDSPORE" not in found
    found = env(good(with_marks(job("mindspore"), {"subHealthyStrategy": "hotSwitch"})), "Worker")
    del expected["HIGH_AVAILABILITY"]
    assert {**expected, "MINDIO_FOR_MINDSPORE": "1"}.items() <= found.items()


def test_what_the_user_wrote() -> None:
    written = [
        {"name": "RANK", "value": "77"},  # the original's own replace it
        {"name": "POD_IP", "value": "1.2.3.4"},  # a convenience is left alone
        {"name": "ONWARD_RECOVER_STRATEGY", "value": "exit"},  # so are the defaults of onward run
        {"name": "HIGH_AVAILABILITY", "value": "retry, mine"},  # lists are merged
        {"name": "OTHER", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    worker = role(container={"env": written})
    worker["template"]["spec"]["containers"].append(
        {"name": "side", "image": "any", "env": [{"name": "A", "value": "b"}]}
    )
    read = good(with_marks(job(Master=role(), Worker=worker), recover_strategy="recover"))
    pod = pods.pod(read, "Worker", 0, around=HERE)
    found = env_of(pod)
    assert found["RANK"] == "1"
    assert found["POD_IP"] == "1.2.3.4"
    assert found["ONWARD_RECOVER_STRATEGY"] == "exit"
    assert found["HIGH_AVAILABILITY"] == "mine,recover,retry"
    assert found["OTHER"] == "<configMapKeyRef>"
    assert env_of(pod, "side") == {"A": "b"}
    names = [e["name"] for e in pod["spec"]["containers"][0]["env"]]
    assert names.index("POD_IP") < names.index("ONWARD_LOCAL_ADDR")  # $(POD_IP) is known where it is used


def test_what_onward_run_is_told() -> None:
    read = good(with_marks(job(Master=role(), Worker=role(2)), recover_strategy="recover"))
    leader, worker = env(read, "Master"), env(read, "Worker", 1)
    assert (leader["ONWARD_JOB_NAME"], leader["ONWARD_JOB_UID"]) == ("gpt", "u-1")
    assert (leader["ONWARD_POD_NAME"], leader["ONWARD_POD_UID"]) == ("<metadata.name>", "<metadata.uid>")
    assert (leader["ONWARD_LOCAL_ADDR"], leader["ONWARD_MANAGER_PORT"]) == ("$(POD_IP)", "9601")
    assert leader["ONWARD_RDZV_ENDPOINT"] == "[$(POD_IP)]:9601"
    assert worker["ONWARD_RDZV_ENDPOINT"] == "10.96.0.7:9601"
    assert worker["ONWARD_NODE_RANK"] == "2"
    assert worker["ONWARD_RECOVER_STRATEGY"] == "recover,exit"
    assert "ONWARD_STANDBY" not in worker


def test_what_a_pod_is_told_that_takes_the_place_of_another() -> None:
    read = good(with_marks(job(Master=role(), Worker=role(2)), recover_strategy="recover"))
    begun = Surroundings("10.96.0.7", others=("10.0.0.4:9601", "10.0.0.5:9601"), joins=True, operator="op:1")
    again = env(read, "Master", around=begun)
    assert "ONWARD_RDZV_ENDPOINT" not in again  # the job goes on elsewhere: this pod does not begin it anew
    assert again["ONWARD_MANAGER"] == "10.0.0.4:9601,10.0.0.5:9601,[$(POD_IP)]:9601"  # the others may look for it there
    assert (again["ONWARD_STANDBY"], again["ONWARD_NODE_RANK"]) == ("1", "0")
    assert again["ONWARD_OPERATOR"] == "op:1"
    assert env(read, "Worker", 1, around=begun)["ONWARD_MANAGER"].endswith(",10.96.0.7:9601")

    early = Surroundings("10.96.0.7", others=("10.0.0.4:9601",))
    assert env(read, "Master", around=early)["ONWARD_RDZV_ENDPOINT"] == "[$(POD_IP)]:9601,10.0.0.4:9601"
    assert "ONWARD_STANDBY" not in env(read, "Master", around=early), "it is where the job begins"


def test_addresses_of_ipv6_are_told_from_their_ports() -> None:
    found = env(good(job()), "Worker", around=Surroundings("fd00::7", others=("[fd00::9]:9601",)))
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("fd00::7", "2222")
    assert found["ONWARD_RDZV_ENDPOINT"] == "[fd00::7]:9601,[fd00::9]:9601"


@pytest.mark.parametrize(
    ("labels", "ladder"),
    [
        ({}, "retry,recover-in-place,dump,exit"),  # nobody would replace a pod
        ({"fault-scheduling": "off"}, "retry,recover-in-place,dump,exit"),
        ({"fault-scheduling": "grace"}, "retry,recover-in-place,recover,dump,exit"),
        ({"fault-scheduling": "force"}, "retry,recover-in-place,recover,dump,exit"),
    ],
)
def test_the_ladder_of_a_job_that_names_none(labels: dict[str, str], ladder: str) -> None:
    assert env(good(with_marks(job(), labels)), "Worker")["ONWARD_RECOVER_STRATEGY"] == ladder


@pytest.mark.parametrize(("scheduling", "ladder"), [("off", "dump,exit"), ("grace", "recover,dump,exit")])
def test_where_no_pod_is_replaced_nobody_waits_for_one(scheduling: str, ladder: str) -> None:
    marked = with_marks(job(), {"fault-scheduling": scheduling}, recover_strategy="recover,dump")
    assert env(good(marked), "Worker")["ONWARD_RECOVER_STRATEGY"] == ladder


def test_how_long_is_waited_and_which_faults_are_silenced_is_told() -> None:
    silent = {"huawei.com/schedule.filter.faultCode": "80C98009:5,8C1F8609"}
    given = with_marks(job(), wait_reschedule_timeout=60)
    given["metadata"]["annotations"] |= silent
    found = env(good(given), "Worker")
    assert found["ONWARD_WAIT_RESCHEDULE_TIMEOUT"] == "60"
    assert found["ONWARD_SILENCE_FAULT"] == "80C98009:5,8C1F8609:60"
    assert env(good(job()), "Worker")["ONWARD_WAIT_RESCHEDULE_TIMEOUT"] == "270"


def test_an_elastic_job_may_go_on_with_fewer() -> None:
    given = with_marks(job(Master=role(), Worker=role(3)), recover_strategy="elastic-training,recover")
    assert env(good(given), "Worker")["ONWARD_NNODES"] == "1:4"
    given["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 2}}
    assert env(good(given), "Worker")["ONWARD_NNODES"] == "2:4"


def test_a_leader_without_devices_has_no_ranks() -> None:
    read = good(job("mindspore", Scheduler=role(), Worker=role(2, 8)))
    leader = pods.pod(read, "Scheduler", 0, around=HERE)
    assert "hccl/rankIndex" not in leader["metadata"]["annotations"]
    assert "ONWARD_NODE_RANK" not in env_of(leader)
    worker = env(read, "Worker", 1)
    assert (worker["MS_NODE_RANK"], worker["MS_WORKER_NUM"]) == ("1", "16")
    assert worker["ONWARD_MANAGER"] == "10.96.0.7:9601"


def test_a_job_that_serves_is_told_less() -> None:
    found = env(good(with_marks(job(), {"jobID": "j7", "app": "ms"})), "Worker")
    assert (found["MINDX_TASK_ID"], found["APP_TYPE"]) == ("j7", "ms")
    assert "MASTER_ADDR" not in found
    place = {"ONWARD_NNODES", "ONWARD_NODE_RANK", "ONWARD_RDZV_ENDPOINT", "ONWARD_MANAGER"}
    assert not place & found.keys(), "each is a server of its own, also where `onward run` starts it"


def test_a_scheduler_of_mindspore_is_no_worker_where_there_are_no_accelerators_either() -> None:
    """It waits for as many workers as it is told of: with itself among them it would wait for ever."""
    read = good(job("mindspore", Scheduler=role(), Worker=role(2)))
    told = [env(read, "Worker", index) for index in (0, 1)]
    assert [(found["MS_NODE_RANK"], found["MS_WORKER_NUM"]) for found in told] == [("0", "2"), ("1", "2")]
    leader = env(read, "Scheduler")
    assert (leader["MS_ROLE"], leader["NPU_POD"], leader["MS_WORKER_NUM"]) == ("MS_SCHED", "false", "2")
    assert env(good(job("tensorflow", Chief=role(), Worker=role(2))), "Worker")["CM_WORKER_SIZE"] == "3"


def test_the_secret_is_mounted_or_comes_by_environment() -> None:
    read = good(job())
    pod = pods.pod(read, "Worker", 0)
    assert pod["spec"]["volumes"] == [{"name": "onward-identity", "secret": {"secretName": "gpt-onward"}}]
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/var/run/secrets/onward"
    other = pods.pod(read, "Worker", 0, around=Surroundings(token_in_env=True))
    assert "volumes" not in other["spec"]
    assert env_of(other)["ONWARD_JOIN_TOKEN"] == "<secretKeyRef>"
    (token,) = [e for e in other["spec"]["containers"][0]["env"] if e["name"] == "ONWARD_JOIN_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "gpt-onward", "key": "token"}
    assert pods.secret(read, "abc")["metadata"]["name"] == "gpt-onward"


@pytest.mark.parametrize(
    ("policy", "of_pod"), [("ExitCode", "Never"), ("OnFailure", "OnFailure"), ("Always", "Always"), ("Never", "Never")]
)
def test_restart_policy(policy: str, of_pod: str) -> None:
    worker = role(restartPolicy=policy, spec={"restartPolicy": "Always"})
    read = good(job(Master=role(), Worker=worker))
    assert pods.pod(read, "Worker", 0)["spec"]["restartPolicy"] == of_pod


def test_nodes_that_are_preferred_and_avoided() -> None:
    expression = {"key": "disk", "operator": "Exists"}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}, {"matchExpressions": [expression]}]
            }
        },
        "podAntiAffinity": {"x": 1},
    }
    read = good(job(Master=role(), Worker=role(spec={"affinity": affinity})))
    found = pods.pod(read, "Worker", 0, prefer="n1", avoid=("n2", "n3"), shun=("n4",))["spec"]["affinity"]
    terms = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in terms:  # any of them is enough, so each of them excludes
        assert term["matchExpressions"] == [expression]
        assert [(f["operator"], f["values"]) for f in term["matchFields"]] == [("NotIn", ["n2"]), ("NotIn", ["n3"])]
    wishes = found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    fields = [wish["preference"]["matchFields"][0] for wish in wishes]
    assert [(f["operator"], f["values"]) for f in fields] == [("In", ["n1"]), ("NotIn", ["n4"])]
    assert found["podAntiAffinity"] == {"x": 1}
    assert "affinity" not in pods.pod(good(job()), "Worker", 0)["spec"]


def test_a_stand_in() -> None:
    pod = pods.pod(good(job()), "Worker", 0, stand_in_for="gpt-worker-0", name="gpt-worker-0-hot-1234",
                   around=Surroundings(standby=True))  # fmt: skip
    assert pod["metadata"]["name"] == "gpt-worker-0-hot-1234"
    assert pod["metadata"]["annotations"]["podType"] == "backup"
    assert pod["metadata"]["annotations"]["backupSourcePodName"] == "gpt-worker-0"
    assert env_of(pod)["ONWARD_STANDBY"] == "1"
    leader = pods.pod(good(job()), "Master", 0, stand_in_for="gpt-master-0", name="gpt-master-0-hot")
    service = pods.service(good(job()))
    assert service is not None
    assert not service["spec"]["selector"].items() <= leader["metadata"]["labels"].items(), "not before it leads"


def test_unquoted_numbers_in_a_template() -> None:
    worker = role()
    worker["template"]["metadata"] = {"annotations": {"gang/min-available": 4}, "labels": {"a": True}}
    metadata = pods.pod(good(job(Master=role(), Worker=worker)), "Worker", 0)["metadata"]
    assert metadata["annotations"]["gang/min-available"] == "4"
    assert metadata["labels"]["a"] == "true"


def test_a_pod_carries_which_template_it_was_made_from() -> None:
    def mark(obj: dict[str, Any], name: str) -> str:
        return str(pods.pod(good(obj), name, 0)["metadata"]["annotations"]["onward.dev/template"])

    before = job(Master=role(), Worker=role())
    after = job(Master=role(), Worker=role(container={"image": "other"}))
    assert mark(before, "Master") == mark(after, "Master")
    assert mark(before, "Worker") != mark(after, "Worker")


def test_the_service_is_the_leaders() -> None:
    ports = [{"containerPort": 8000, "name": "ttp-port"}, {"containerPort": 9999}]
    ports += [{"containerPort": 8000, "name": "again"}]
    service = pods.service(good(job(Master=role(container={"ports": ports}), Worker=role())))
    assert service is not None
    assert service["metadata"]["name"] == "gpt-master-0"
    listed = {p["name"]: p["port"] for p in service["spec"]["ports"]}
    assert listed == {"ttp-port": 8000, "ascendjob-port": 2222, "taskd-port": 9601}
    assert service["spec"]["selector"]["training.kubeflow.org/replica-type"] == "master"
    assert pods.service(good(job("mindspore", Worker=role()))) is None


def test_the_gang() -> None:
    given = with_marks(seed(), recover_strategy="retry")
    given["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
    group = pods.pod_group(good(given))
    assert "kubectl.kubernetes.io/last-applied-configuration" not in group["metadata"]["annotations"], "of the job"
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["metadata"]["name"] == "default-test-pytorch-c0ffee"
    assert group["metadata"]["labels"]["process-recover-enable"] == "on"
    assert group["metadata"]["annotations"]["huawei.com/schedule_policy"] == "chip8-node8"
    assert group["spec"] == {
        "minMember": 2,
        "minTaskMember": {"master": 1, "worker": 1},
        "queue": "default",
        "minResources": {"huawei.com/Ascend910": "4"},
    }


def test_what_a_gang_needs_at_least() -> None:
    cpu = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    big = {"resources": {"requests": {"cpu": 4, "nvidia.com/gpu": 8}}}
    given = job(Master=role(container=cpu), Worker=role(4, container=big))
    given["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 3, "priorityClass": "high"}}
    spec = pods.pod_group(good(given))["spec"]
    assert spec["minResources"] == {"cpu": "8500m", "memory": "1Gi", "nvidia.com/gpu": "16"}
    assert spec["priorityClassName"] == "high"
    given["spec"]["runPolicy"]["schedulingPolicy"]["minResources"] = {"cpu": 1}
    assert pods.pod_group(good(given))["spec"]["minResources"] == {"cpu": "1"}


def test_a_gang_that_its_job_asks_otherwise_of() -> None:
    gpus = {"resources": {"requests": {"cpu": 1, "nvidia.com/gpu": 8}}}
    given = job(Master=role(container=gpus), Worker=role(container=gpus))
    given["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "high"}}
    there = pods.pod_group(good(given))
    there["spec"]["networkTopology"] = {"mode": "hard"}
    assert pods.pod_group_change(good(given), there) == {}, "a field of somebody else is nobody's business"
    change = pods.pod_group_change(good(job(Master=role(container={"resources": {"requests": {"cpu": 2}}}))), there)
    assert change["spec"] == {
        "minMember": 1,
        "minTaskMember": {"master": 1, "worker": None},
        "minResources": {"cpu": "2", "nvidia.com/gpu": None},
        "priorityClassName": None,
    }


def placed(read: Job, role: str, index: int, ip: str, **annotations: str) -> dict[str, Any]:
    pod = pods.pod(read, role, index)
    pod["metadata"]["annotations"] |= annotations
    pod["status"] = {"podIP": ip, "hostIP": "9.9.9.9", "phase": "Running"}
    return pod


def test_the_rank_table() -> None:
    read = good(job(Master=role(devices=2), Worker=role(devices=2)))
    plugin = {"server_id": "s", "devices": [{"device_id": "4", "device_ip": "1.1.1.1"}, {"device_id": "5"}]}
    master = placed(read, "Master", 0, "10.0.0.1", **{"huawei.com/Ascend910": "Ascend910-0,Ascend910-1"})
    worker = placed(read, "Worker", 0, "10.0.0.2", **{ranktable.DEVICE_INFO[0]: json.dumps(plugin)})
    alone = json.loads(ranktable.rank_table(read, [worker]) or "")
    assert alone == {"status": "initializing", "version": "1.0"}
    table = json.loads(ranktable.rank_table(read, [worker, master]) or "")
    assert (table["status"], table["server_count"], table["version"]) == ("completed", "2", "1.0")
    assert table["server_list"] == [
        {
            "server_id": "9.9.9.9",
            "host_ip": "9.9.9.9",
            "container_ip": "10.0.0.1",
            "device": [
                {"device_id": "0", "device_ip": "", "rank_id": "0"},
                {"device_id": "1", "device_ip": "", "rank_id": "1"},
            ],
        },
        {
            "server_id": "s",
            "host_ip": "9.9.9.9",
            "container_ip": "10.0.0.2",
            "device": [
                {"device_id": "4", "device_ip": "1.1.1.1", "rank_id": "2"},
                {"device_id": "5", "device_ip": "", "rank_id": "3"},
            ],
        },
    ]
    assert ranktable.rank_table(read, [worker, master, worker]) is None  # a stand-in: what is there stays
    assert ranktable.directory(read) == "/user/mindx-dl/ranktable/default.gpt"
    assert not ranktable.wants_file(read)
    volume = {"volumes": [{"name": "ranktable", "hostPath": {"path": "/r"}}]}
    assert ranktable.wants_file(good(job(Master=role(spec=volume), Worker=role())))


def test_the_rank_table_of_a_job_without_devices() -> None:
    read = good(job())
    table = json.loads(
        ranktable.rank_table(read, [placed(read, "Master", 0, "10.0.0.1"), placed(read, "Worker", 0, "10.0.0.2")]) or ""
    )
    assert [d["rank_id"] for s in table["server_list"] for d in s["device"]] == ["0", "1"]
