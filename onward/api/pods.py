"""The objects that a job is made of: pods, the leader's service, the gang. Pure; the operator creates them.

Names and labels are the original's, since people select by them; every field of the user's template is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.api import marks
from onward.api.ascendjob import GROUP, MANAGER_PORT, MANAGER_PORT_NAME
from onward.api.env import SECRET_PATH, TOKEN_KEY, Surroundings, environment, leader_name
from onward.api.job import Job, Obj, Replica
from onward.core import quantity

CONTROLLER = "ascendjob-controller"
JOB_NAME, REPLICA_TYPE, REPLICA_INDEX = "job-name", "replica-type", "replica-index"  # the legacy twins of the next ones
KUBEFLOW = "training.kubeflow.org"
OPERATOR_NAME = f"{KUBEFLOW}/operator-name"
WAVE = "version"
RANK_INDEX = "hccl/rankIndex"
GANG = "scheduling.k8s.io/group-name"
TASK = "volcano.sh/task-spec"
TEMPLATE = "onward.dev/template"
POD_GROUP_API = "scheduling.volcano.sh/v1beta1"
POD_TYPE, BACKUP, BACKUP_SOURCE = "podType", "backup", "backupSourcePodName"
HOT = "-hot"  # at the end of the name of a pod that has taken over from another, or is to
SECRET_VOLUME = "onward-identity"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # of the job: kubectl's note to itself
NOTHING_KNOWN = Surroundings()
GANG_TERMS = ("minMember", "minTaskMember", "minResources", "queue", "priorityClassName")  # what a job says in it


def pod_name(job: Job, role: str, index: int) -> str:
    return f"{job.name}-{role.lower()}-{index}"


def stand_in_name(job: Job, role: str, index: int, old: str) -> str:
    """Beside a pod of this name. Two names take turns."""
    base = pod_name(job, role, index)
    return f"{base}{HOT}" if old == base else base


def service_name(job: Job) -> str:
    """Of the leader's service, which is called as its pod; empty when the job has no leader."""
    return leader_name(job)


def pod_group_name(job: Job) -> str:
    return f"{job.name}-{job.uid}"


def secret_name(job: Job) -> str:
    return f"{job.name}-onward"


def config_map_name(job: Job) -> str:
    """Where the rank table goes, if the user has made that ConfigMap."""
    return f"rings-config-{job.name}"


def owner(job: Job) -> Obj:
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def job_labels(job: Job) -> dict[str, str]:
    """On every object of the job; pods of it are found by these."""
    return {
        OPERATOR_NAME: CONTROLLER,
        f"{KUBEFLOW}/job-name": job.name,
        "group-name": GROUP,
        JOB_NAME: job.name,
    }


def place_labels(job: Job, role: str, index: int) -> dict[str, str]:
    """On the pods that hold this place."""
    kind = role.lower()
    types = {f"{KUBEFLOW}/replica-type": kind, REPLICA_TYPE: kind}
    return {**job_labels(job), **types, **index_labels(str(index))}


def index_labels(index: str) -> dict[str, str]:
    """That of a stand-in is not a number: the leader's service must not lead to it before it has taken over."""
    return {f"{KUBEFLOW}/replica-index": index, REPLICA_INDEX: index}


def leads_to(service: Mapping[str, Any]) -> str:
    """The index of the pods that a service selects, as they are labelled."""
    return str(((service.get("spec") or {}).get("selector") or {}).get(REPLICA_INDEX, ""))


def place_of(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """(replica type in lower case, index) of a pod, as its labels say; None when they do not."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    number = str(labels.get(REPLICA_INDEX, ""))
    kind = str(labels.get(REPLICA_TYPE, ""))
    return (kind, int(number)) if kind and number.isdecimal() else None


def wave_of(pod: Mapping[str, Any]) -> int:
    """In which wave a pod was made."""
    text = str(((pod.get("metadata") or {}).get("labels") or {}).get(WAVE, ""))
    return int(text) if text.isdecimal() else 0


def pod(
    job: Job,
    role: str,
    index: int,
    *,
    wave: int = 0,
    around: Surroundings = NOTHING_KNOWN,
    prefer: str = "",
    avoid: Sequence[str] = (),
    shun: Sequence[str] = (),
    stand_in_for: str = "",
    name: str = "",
) -> Obj:
    """One pod of a job.

    `prefer`, `avoid` and `shun` name nodes; one that is shunned is taken when there is no other. `stand_in_for` is the
    pod whose place it will take (hot switch); it then needs a `name` of its own.
    """
    replica = job.replica(role)
    template = copy.deepcopy(replica.template)
    own = template.get("metadata") or {}
    labels = {**marks.texts(own.get("labels")), **place_labels(job, replica.name, index), WAVE: str(wave)}
    if replica.leader:
        labels |= {f"{KUBEFLOW}/job-role": "master", "job-role": "master"}
    if name and name != pod_name(job, replica.name, index):
        labels |= index_labels(f"{index}{HOT}")
    annotations = {**marks.texts(own.get("annotations")), TEMPLATE: replica.digest}
    if job.trains(replica):
        annotations[RANK_INDEX] = str(job.node_rank(replica, index))
    if job.scheduling.gang:
        annotations |= {GANG: pod_group_name(job), TASK: replica.lower}
    if stand_in_for:
        annotations |= {POD_TYPE: BACKUP, BACKUP_SOURCE: stand_in_for}
    kept = {key: value for key, value in own.items() if key not in ("name", "generateName", "namespace")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **kept,
            "name": name or pod_name(job, replica.name, index),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner(job)],
        },
        "spec": _spec(job, replica, index, template["spec"], around, _Nodes(prefer, avoid, shun)),
    }


@dataclass(frozen=True)
class _Nodes:
    prefer: str
    avoid: Sequence[str]
    shun: Sequence[str]


def _spec(job: Job, replica: Replica, index: int, spec: Obj, around: Surroundings, nodes: _Nodes) -> Obj:
    spec["restartPolicy"] = "Never" if replica.restart_policy == "ExitCode" else replica.restart_policy
    if job.scheduling.scheduler and not spec.get("schedulerName"):
        spec["schedulerName"] = job.scheduling.scheduler
    if not spec.get("serviceAccountName"):
        spec.setdefault("automountServiceAccountToken", False)  # a training pod has nothing to say to the API
    container = next((c for c in spec["containers"] if c.get("name") == replica.container), spec["containers"][0])
    container["env"] = environment(job, replica, index, around, secret_name(job))
    if not around.token_in_env:
        _mount_secret(job, spec, container)
    if nodes.prefer or nodes.avoid or nodes.shun:
        _affinity(spec, nodes)
    return spec


def _mount_secret(job: Job, spec: Obj, container: Obj) -> None:
    volume = {"name": SECRET_VOLUME, "secret": {"secretName": secret_name(job)}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    mount = {"name": SECRET_VOLUME, "mountPath": SECRET_PATH, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _affinity(spec: Obj, nodes: _Nodes) -> None:
    """By node name, in words that every scheduler understands."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    wishes = [_named("In", nodes.prefer)] if nodes.prefer else []
    wishes += [_named("NotIn", name) for name in nodes.shun]
    if wishes:
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        new = [{"weight": 100, "preference": {"matchFields": [wish]}} for wish in wishes]
        node[key] = [*(node.get(key) or ()), *new]
    if nodes.avoid:
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        required = dict(node.get(key) or {})
        terms = list(required.get("nodeSelectorTerms") or [{}])  # any of them is enough, so each must exclude
        not_there = [_named("NotIn", name) for name in nodes.avoid]
        required["nodeSelectorTerms"] = [
            {**t, "matchFields": [*(t.get("matchFields") or ()), *not_there]} for t in terms
        ]
        node[key] = required


def _named(operator: str, node: str) -> Obj:
    return {"key": "metadata.name", "operator": operator, "values": [node]}


def service(job: Job) -> Obj | None:
    """Where the others find the leader: every named port of its container, and the manager's. None without a leader."""
    leader = job.leader
    if leader is None:
        return None
    ports = {str(p["name"]): p for p in leader.main.get("ports") or () if p.get("name")}
    listed: list[Obj] = []
    for name, p in ports.items():
        port = {"port": int(p["containerPort"]), "protocol": p.get("protocol") or "TCP"}
        if all(port.items() - other.items() for other in listed):  # a service has each once, whatever it is called
            listed.append({"name": name, **port})
    if all(port["port"] != MANAGER_PORT for port in listed):
        name = MANAGER_PORT_NAME if MANAGER_PORT_NAME not in ports else "onward-port"
        listed.append({"name": name, "port": MANAGER_PORT, "protocol": "TCP"})
    labels = place_labels(job, leader.name, 0)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(job),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner(job)],
        },
        # The others must find a leader that is not ready yet: it gets ready by meeting them.
        "spec": {"selector": labels, "ports": listed, "publishNotReadyAddresses": True},
    }


def secret(job: Job, token: str) -> Obj:
    """What the processes of the job know each other by."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(job),
            "namespace": job.namespace,
            "labels": job_labels(job),
            "ownerReferences": [owner(job)],
        },
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }


def pod_group(job: Job) -> Obj:
    """The gang, with all labels and annotations of the job: schedulers read them there."""
    labels = dict(job.labels)
    if job.recovery.strategies:
        labels[marks.PROCESS_RECOVER] = "on"
    spec: Obj = {
        "minMember": job.scheduling.min_available,
        "minTaskMember": {replica.lower: replica.count for replica in job.replicas},
        "minResources": min_resources(job),
    }
    if job.scheduling.queue:
        spec["queue"] = job.scheduling.queue
    if job.scheduling.priority_class:
        spec["priorityClassName"] = job.scheduling.priority_class
    return {
        "apiVersion": POD_GROUP_API,
        "kind": "PodGroup",
        "metadata": {
            "name": pod_group_name(job),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": {key: text for key, text in job.annotations.items() if key != LAST_APPLIED},
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    }


def pod_group_change(job: Job, there: Mapping[str, Any]) -> Obj:
    """The merge patch after which a PodGroup asks for what its job asks for now; empty: it does.

    What is no longer asked for goes, down to a single resource. Fields of others stay.
    """
    old, new = there.get("spec") or {}, pod_group(job)["spec"]
    change = {}
    for term in GANG_TERMS:
        was, wanted = old.get(term) or None, new.get(term) or None
        if was != wanted:
            gone = {key: None for key in was if key not in (wanted or {})} if isinstance(was, Mapping) else {}
            change[term] = {**gone, **wanted} if isinstance(wanted, Mapping) else wanted
    return {"spec": change} if change else {}


def min_resources(job: Job) -> dict[str, str]:
    """As the user wrote it, or what the first `minAvailable` pods need, the leader first."""
    if job.scheduling.min_resources:
        return dict(job.scheduling.min_resources)
    left, total = job.scheduling.min_available, dict[str, int]()
    for replica in job.replicas:
        count = min(left, replica.count)
        left -= count
        _add(total, replica.requests.items(), count)
    return {name: quantity.write(name, amount) for name, amount in sorted(total.items()) if amount}


def _add(total: dict[str, int], needs: Iterable[tuple[str, int]], times: int) -> None:
    for name, amount in needs:
        total[name] = total.get(name, 0) + amount * times
