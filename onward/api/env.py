"""What the training container of a pod is told through its environment.

Three kinds. What the original injects (`RANK`, `MASTER_ADDR`, `PROCESS_RECOVER`, ...) replaces what the user wrote
under that name, as the original does; two lists of features are merged with the user's. What is only a convenience
(`POD_IP`, `XDL_IP`, `ASCEND_VISIBLE_DEVICES`) is left as the user wrote it. `ONWARD_*` are defaults for `onward run`: a
flag wins, and so does a variable of the user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onward.api.ascendjob import MANAGER_PORT, PORT, PORT_NAME
from onward.api.job import MINDSPORE, PYTORCH, TENSORFLOW, Job, Obj, Replica
from onward.core.policy import Policy

CLUSTERD = "clusterd-grpc-svc.mindx-dl.svc.cluster.local"
WHOLE_CARDS = ("huawei.com/Ascend910", "huawei.com/Ascend310", "huawei.com/Ascend310P", "huawei.com/npu")
HIGH_AVAILABILITY, MS_ENABLE_TFT = "HIGH_AVAILABILITY", "MS_ENABLE_TFT"

SECRET_PATH = "/var/run/secrets/onward"
TOKEN_KEY = "token"
TOKEN_FILE = f"{SECRET_PATH}/{TOKEN_KEY}"


@dataclass(frozen=True)
class Surroundings:
    """What only the cluster knows, when a pod is made."""

    leader_address: str = ""  # where the others find the leader; empty: the name of its service
    others: tuple[str, ...] = ()  # where a manager may be, besides the leader: pods that were here before
    joins: bool = False  # the job has begun without this pod: a manager is at one of `others`, or at the leader
    operator: str = ""  # where the operator listens for what managers have to say
    standby: bool = False  # this pod gets ready beside the one whose place it is to take
    token_in_env: bool = False  # the secret comes by environment: nothing can be mounted
    clusterd: str = CLUSTERD
    extra: tuple[tuple[str, str], ...] = ()


def environment(job: Job, replica: Replica, index: int, around: Surroundings, secret: str) -> list[Obj]:
    """The `env` of the training container: ours, then the user's, then the defaults of `onward run`."""
    users: list[Obj] = list(replica.main.get("env") or [])
    written = {str(entry.get("name")) for entry in users}
    firm = _firm(job, replica, index, around)
    features = _features(job, users)
    ours = [_plain(name, value) if isinstance(value, str) else _entry(name, value) for name, value in firm.items()]
    ours = _conveniences(replica, written) + ours + [_plain(name, value) for name, value in features.items()]
    taken = {entry["name"] for entry in ours}
    defaults = [e for e in _defaults(job, replica, index, around, secret) if e["name"] not in written]
    return ours + [entry for entry in users if entry.get("name") not in taken] + defaults


def leader_port(job: Job) -> int:
    """The port named `ascendjob-port` of the leader's container."""
    leader = job.leader
    ports = (leader.main.get("ports") or ()) if leader else ()
    return next((int(p["containerPort"]) for p in ports if p.get("name") == PORT_NAME), PORT)


def door_of(host: str, port: int | str = MANAGER_PORT) -> str:
    """Where a manager is. In brackets where colons may be in it: an address of IPv6, or one that is not known yet."""
    return f"[{host}]:{port}" if ":" in host or host.startswith("$") else f"{host}:{port}"


def leader_name(job: Job) -> str:
    """Name of the leader's pod, and of its service."""
    leader = job.leader
    return f"{job.name}-{leader.lower}-0" if leader else ""


def _plain(name: str, value: str) -> Obj:
    return {"name": name, "value": value}


def _entry(name: str, source: Mapping[str, object]) -> Obj:
    return {"name": name, "valueFrom": dict(source)}


def _field(path: str) -> Obj:
    return {"fieldRef": {"fieldPath": path}}


def _conveniences(replica: Replica, written: Iterable[str]) -> list[Obj]:
    found = {"POD_IP": _field("status.podIP"), "XDL_IP": _field("status.hostIP")}
    if replica.device[0] in WHOLE_CARDS:
        found["ASCEND_VISIBLE_DEVICES"] = _field(f"metadata.annotations['{replica.device[0]}']")
    return [_entry(name, source) for name, source in found.items() if name not in written]


def _firm(job: Job, replica: Replica, index: int, around: Surroundings) -> dict[str, str | Obj]:
    """What the original injects, by name."""
    server: dict[str, str | Obj] = {"MINDX_SERVER_IP": around.clusterd, "MINDX_SERVER_DOMAIN": CLUSTERD}
    if job.app:
        return {"MINDX_TASK_ID": job.labels["jobID"], "APP_TYPE": job.app, **server}
    found: dict[str, str | Obj] = {
        "MINDX_TASK_ID": job.uid,
        **server,
        "HostNetwork": "true" if replica.template["spec"].get("hostNetwork") else "false",
        "REPLICA_TYPE": replica.name,
        **_super_pod(job, replica, index),
    }
    if job.leader is None:
        return found  # MindSpore with workers alone: nobody to meet
    host = around.leader_address or f"{leader_name(job)}.{job.namespace}.svc"
    match job.framework:
        case "pytorch":
            found |= _pytorch(job, replica, index, host)
        case "mindspore":
            found |= _mindspore(job, replica, index, host)
        case "tensorflow":
            found |= _tensorflow(job, replica, index, host)
    return found | _recovery(job)


def _super_pod(job: Job, replica: Replica, index: int) -> dict[str, str | Obj]:
    name, chips = replica.device
    if not name.startswith("huawei.com/"):
        return {}
    if job.labels.get("super-pod-affinity") == "soft" and name != "huawei.com/npu":
        return {"HCCL_LOGIC_SUPERPOD_ID": _field("metadata.annotations['super-pod-rank']")}
    text = job.annotations.get("sp-block", "")
    block = int(text) if text.isdecimal() else 0
    number = job.node_rank(replica, index) // max(1, block // chips) if block and chips else 0
    return {"HCCL_LOGIC_SUPERPOD_ID": str(number)}


def _pytorch(job: Job, replica: Replica, index: int, host: str) -> dict[str, str | Obj]:
    local = max(job.device[1], 1)
    return {
        "LOCAL_WORLD_SIZE": str(local),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_RANK": ",".join(map(str, range(local))),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(leader_port(job)),
        "RANK": str(job.node_rank(replica, index)),
    }


def _mindspore(job: Job, replica: Replica, index: int, host: str) -> dict[str, str | Obj]:
    return {
        "MS_SCHED_HOST": _field("status.podIP") if replica.leader else host,
        "MS_SCHED_PORT": str(leader_port(job)),
        "MS_LOCAL_WORKER": str(max(job.device[1], 1)),
        "MS_WORKER_NUM": str(job.world_size),
        "MS_NODE_RANK": str(job.node_rank(replica, index)),
        "MS_SERVER_NUM": "0",
        "MS_ROLE": "MS_SCHED" if replica.leader else "MS_WORKER",
        "NPU_POD": "true" if replica.device[1] else "false",
    }


def _tensorflow(job: Job, replica: Replica, index: int, host: str) -> dict[str, str | Obj]:
    return {
        "CM_CHIEF_IP": _field("status.podIP") if replica.leader else host,
        "CM_CHIEF_PORT": str(leader_port(job)),
        "CM_CHIEF_DEVICE": "0",
        "CM_WORKER_IP": _field("status.podIP"),
        "CM_RANK": str(job.node_rank(replica, index)),
        "CM_LOCAL_WORKER": str(max(job.device[1], 1)),
        "CM_WORKER_SIZE": str(job.world_size),
    }


def _recovery(job: Job) -> dict[str, str | Obj]:
    """Switches of the training frameworks, by policy. `exit` alone switches nothing on."""
    named = set(job.recovery.strategies) - {Policy.EXIT}
    found: dict[str, str | Obj] = {}
    if job.framework == TENSORFLOW:
        return found
    if job.framework == MINDSPORE:
        named.discard(Policy.ELASTIC)
    if named:
        found["PROCESS_RECOVER"] = "on"
        if job.framework == PYTORCH:
            found["HCCL_ASYNC_ERROR_HANDLING"] = "0"
        else:
            found |= {"MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"}
    if named - {Policy.ELASTIC}:
        found["ELASTIC_PROCESS_RECOVER_ENABLE"] = "1"
    if Policy.RECOVER_IN_PLACE in named:
        found["ENABLE_RESTART_FAULT_PROCESS"] = "on"
    if job.recovery.sub_healthy == "hotSwitch":
        found |= {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
        if job.framework == MINDSPORE:
            found["MINDIO_FOR_MINDSPORE"] = "1"
    return found


_PYTORCH_FEATURES = {
    Policy.RETRY: ("retry",),
    Policy.RECOVER_IN_PLACE: ("recover",),
    Policy.RECOVER: ("recover",),
    Policy.ELASTIC: ("elastic-training",),
    Policy.DUMP: ("dump",),
}
_MINDSPORE_FEATURES = {
    Policy.RETRY: ("UCE:1", "HCCE:1"),
    Policy.RECOVER_IN_PLACE: ("ARF:1",),
    Policy.RECOVER: ("ARF:1",),
    Policy.DUMP: ("TTP:1",),
}


def _features(job: Job, users: Sequence[Obj]) -> dict[str, str]:
    """HIGH_AVAILABILITY (PyTorch) or MS_ENABLE_TFT (MindSpore): sorted, with what the user has listed there."""
    if job.app or job.leader is None or job.framework == TENSORFLOW:
        return {}
    table = _PYTORCH_FEATURES if job.framework == PYTORCH else _MINDSPORE_FEATURES
    name = HIGH_AVAILABILITY if job.framework == PYTORCH else MS_ENABLE_TFT
    wanted = {feature for policy in job.recovery.strategies for feature in table.get(policy, ())}
    if job.recovery.sub_healthy == "hotSwitch":
        wanted |= set(table[Policy.RECOVER])
    if job.recovery.pod_rescheduling and job.framework == MINDSPORE:
        wanted.add("RSC:1")
    if not wanted:
        return {}
    own = next((str(e.get("value") or "") for e in users if e.get("name") == name), "")
    wanted |= {part.strip() for part in own.strip().strip("{}").split(",")} - {""}
    text = ",".join(sorted(wanted))
    return {name: text if job.framework == PYTORCH else f"{{{text}}}"}


def _defaults(job: Job, replica: Replica, index: int, around: Surroundings, secret: str) -> list[Obj]:
    """What `onward run` in this pod needs to find the others."""
    found = {"ONWARD_JOB_NAME": job.name, "ONWARD_JOB_UID": job.uid}
    listed = [_plain(name, value) for name, value in found.items()]
    listed += [_entry("ONWARD_POD_NAME", _field("metadata.name")), _entry("ONWARD_POD_UID", _field("metadata.uid"))]
    if around.token_in_env:
        listed.append(_entry("ONWARD_JOIN_TOKEN", {"secretKeyRef": {"name": secret, "key": TOKEN_KEY}}))
    else:
        listed.append(_plain("ONWARD_JOIN_TOKEN_FILE", TOKEN_FILE))
    place = {} if job.app else _place(job, replica, index, around)  # pods that serve have nothing to do with each other
    more = {**_ladder(job), **place, **dict(around.extra)}
    if around.operator:
        more["ONWARD_OPERATOR"] = around.operator
    return listed + [_plain(name, value) for name, value in more.items()]


def _ladder(job: Job) -> dict[str, str]:
    recovery = job.recovery
    strategies = recovery.strategies
    if not strategies:  # none was named: what needs no other pod
        strategies = (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.DUMP, Policy.EXIT)
        if recovery.fault_scheduling in ("grace", "force"):
            strategies = (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.DUMP, Policy.EXIT)
    if recovery.fault_scheduling == "off":  # no pod is ever replaced
        strategies = tuple(policy for policy in strategies if policy is not Policy.RECOVER)
    found = {
        "ONWARD_RECOVER_STRATEGY": ",".join(policy.value for policy in strategies),
        "ONWARD_SUB_HEALTHY_STRATEGY": "hotSwitch" if recovery.sub_healthy == "hotSwitch" else "ignore",
        "ONWARD_WAIT_RESCHEDULE_TIMEOUT": str(recovery.wait_reschedule_s),
    }
    if recovery.silenced:
        found["ONWARD_SILENCE_FAULT"] = ",".join(f"{code}:{seconds}" for code, seconds in recovery.silenced)
    return found


def _place(job: Job, replica: Replica, index: int, around: Surroundings) -> dict[str, str]:
    """Which of how many nodes this is, and where they meet."""
    if job.leader is None or not job.trains(replica):
        return {}
    least = job.scheduling.min_available if job.scheduling.min_available < job.total else 1
    elastic = Policy.ELASTIC in job.recovery.strategies and job.nodes > 1
    found = {
        "ONWARD_NNODES": f"{min(least, job.nodes)}:{job.nodes}" if elastic else str(job.nodes),
        "ONWARD_LOCAL_ADDR": "$(POD_IP)",
        "ONWARD_MANAGER_PORT": str(MANAGER_PORT),
    }
    if around.standby or around.joins:
        found["ONWARD_STANDBY"] = "1"
    if not around.standby:
        found["ONWARD_NODE_RANK"] = str(job.node_rank(replica, index))
    if job.device[1]:
        found["ONWARD_NPROC_PER_NODE"] = str(job.device[1])
    host = around.leader_address or f"{leader_name(job)}.{job.namespace}.svc"
    leader = door_of("$(POD_IP)" if replica.leader else host)
    if around.joins:
        found["ONWARD_MANAGER"] = ",".join([*around.others, leader])
    elif not job.trains(job.leader):
        found["ONWARD_MANAGER"] = leader  # it has no ranks: `onward manager` runs there
    else:
        found["ONWARD_RDZV_ENDPOINT"] = ",".join([leader, *around.others])
    return found
