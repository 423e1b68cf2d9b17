"""Kubernetes' objects as `core.reconcile` sees them."""

from __future__ import annotations

from typing import Any

from onward.api import pods
from onward.api.ascendjob import CONTAINER, MOST_REPLICAS
from onward.api.job import Job, Problem
from onward.core.jobs import Gang, NodeSeen, Place, PodSeen, Record, Role, Wanted
from onward.core.policy import Policy
from onward.core.words import shortened
from onward.kube.objects import Obj, name_of, namespace_of, read_stamp, uid_of

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
FAULT = "onward.dev/fault"  # an annotation of a node: what is wrong with it; with it and cordoned, no place for a job
WAVE = "version"  # a label of pods
EVICTED = frozenset({"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost", "NodeAffinity"})
MOST_TEXT = 500  # of why a pod waits or ended: it stands in the status, and in events
OWN_DOING = "DeadlineExceeded"  # the pod's own activeDeadlineSeconds


def wanted(obj: Obj, read: Job | list[Problem]) -> Wanted:
    """What a job asks for; of one with problems little more than its name is known."""
    metadata = obj["metadata"]
    if isinstance(read, list):
        policy = (obj.get("spec") or {}).get("runPolicy") or {}
        ttl = policy.get("ttlSecondsAfterFinished") if isinstance(policy, dict) else None
        return Wanted(
            namespace=namespace_of(obj),
            name=name_of(obj),
            uid=uid_of(obj),
            problems=tuple((p.reason, p.message) for p in read),
            ttl_s=ttl if isinstance(ttl, int) and ttl >= 0 else None,
        )
    recovery, run = read.recovery, read.run
    recovers = Policy.RECOVER in recovery.strategies or Policy.ELASTIC in recovery.strategies
    explicit = "fault-scheduling" in (metadata.get("labels") or {})
    return Wanted(
        namespace=read.namespace,
        name=read.name,
        uid=read.uid,
        roles=tuple(Role(r.name, r.count, r.restart_policy) for r in read.replicas),
        notes=tuple((n.reason, n.message) for n in read.notes),
        service=read.leader is not None,
        leader=(read.leader.name, 0) if read.leader is not None else None,
        gang=read.scheduling.gang,
        suspend=run.suspend,
        backoff_limit=run.backoff_limit or 0,
        retry_times=recovery.fault_retry_times,
        deadline_s=run.deadline_s,
        ttl_s=run.ttl_s,
        clean_pods=run.clean_pods,
        fault_scheduling=recovery.fault_scheduling if explicit else "",
        grace_s=recovery.grace_s,
        keeps_others=recovers or recovery.pod_rescheduling or recovery.pod_only or bool(read.app),
        recovers=recovers,
        elastic=Policy.ELASTIC in recovery.strategies,
        hot_switch=recovery.sub_healthy == "hotSwitch",
        leaves_sub_health=recovery.sub_healthy if recovery.sub_healthy in ("graceExit", "forceExit") else "",
    )


def pod_seen(pod: Obj, place: Place | None, container: str, template: str) -> PodSeen:
    """`place`: which it holds. `template`: the digest of what a pod there is made from now."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    wave = str((metadata.get("labels") or {}).get(WAVE, "0"))
    reason = str(status.get("reason") or "")
    ended = _ended(status, container)
    text = [str(t) for t in (ended.get("reason"), reason, status.get("message"), ended.get("message")) if t]
    phase, dismissed = phase_of(pod, container), _dismissed(metadata, ended)
    unplaced: Obj = next((c for c in status.get("conditions") or [] if c.get("type") == "PodScheduled"), {})
    if phase == "Pending" and unplaced.get("status") == "False":
        text = [str(unplaced.get("message") or "")]
    return PodSeen(
        place=place,
        name=name_of(pod),
        uid=uid_of(pod),
        wave=int(wave) if wave.isdecimal() else 0,
        phase=phase,
        node=str(pod["spec"].get("nodeName") or ""),
        deleting=read_stamp(metadata.get("deletionTimestamp")),
        exit_code=ended.get("exitCode"),
        text=shortened(": ".join(dict.fromkeys(text)), MOST_TEXT),
        evicted=_evicted(status, reason) or _refused(status, reason),
        refused=_refused(status, reason),
        dismissed=dismissed,
        lingers=phase != str(status.get("phase")) and status.get("phase") == "Running",
        made_at=read_stamp(metadata.get("creationTimestamp")) or 0.0,
        scheduler=str(pod["spec"].get("schedulerName") or "default-scheduler"),
        outdated=outdated(pod, template),
        index=str((metadata.get("labels") or {}).get(pods.REPLICA_INDEX, "")),
    )


def outdated(pod: Obj, template: str) -> bool:
    """It would be made otherwise now."""
    made_from = (pod["metadata"].get("annotations") or {}).get(pods.TEMPLATE)
    return made_from is not None and made_from != template


def over(pod: Obj) -> bool:
    """What trains in it has ended for good, by its node's word."""
    return phase_of(pod, CONTAINER) in ("Succeeded", "Failed")


def phase_of(pod: Obj, container: str) -> str:
    """Of what trains in it: when that has ended for good the pod is over, though others in it may run on for ever."""
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    states = (c.get("state") or {} for c in status.get("containerStatuses") or [] if c.get("name") == container)
    ended: Obj = next(states, {}).get("terminated") or {}
    if phase != "Running" or not ended or _starts_again(pod, container, ended):
        return phase
    return "Failed" if ended.get("exitCode") else "Succeeded"


def _starts_again(pod: Obj, container: str, ended: Obj) -> bool:
    """In its pod, by its node."""
    spec = pod["spec"]
    own: Obj = next((c for c in spec.get("containers") or [] if c.get("name") == container), {})
    policy = own.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    by_rule = bool(own.get("restartPolicyRules"))
    return by_rule or policy == "Always" or (policy == "OnFailure" and bool(ended.get("exitCode")))


def _dismissed(metadata: Obj, ended: Obj) -> bool:
    """It has ended since, and so because, somebody deleted it. Stamps are whole seconds."""
    by = read_stamp(metadata.get("deletionTimestamp"))
    at = read_stamp(ended.get("finishedAt"))
    return by is not None and at is not None and at >= by - float(metadata.get("deletionGracePeriodSeconds") or 0)


def _ended(status: Obj, container: str) -> Obj:
    """How the training container ended; another one's end where it did not."""
    states = status.get("containerStatuses") or []
    states = sorted(states, key=lambda c: c.get("name") != container)
    found = [(c.get("state") or {}).get("terminated") or {} for c in states]
    bad = [t for t in found if t.get("exitCode")]
    return next(iter(bad or [t for t in found if t]), {})


def _evicted(status: Obj, reason: str) -> bool:
    conditions = status.get("conditions") or []
    disrupted = any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions)
    return disrupted or reason in EVICTED


def _refused(status: Obj, reason: str) -> bool:
    """By the node that it was bound to (OutOfcpu, UnexpectedAdmissionError, ...): none of its containers ever began."""
    states = [c.get(key) or {} for c in status.get("containerStatuses") or [] for key in ("state", "lastState")]
    began = any("running" in state or "terminated" in state for state in states)
    return status.get("phase") == "Failed" and bool(reason) and reason != OWN_DOING and not began


def node_seen(node: Obj) -> NodeSeen:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    ready = conditions.get("Ready") or {}
    sub_health = conditions.get("SubHealthy") or {}
    fault = str((node["metadata"].get("annotations") or {}).get(FAULT) or "")
    return NodeSeen(
        ready=ready.get("status") == "True",
        since=read_stamp(ready.get("lastTransitionTime")) or 0.0,
        fenced=any(t.get("key") == OUT_OF_SERVICE for t in spec.get("taints") or []),
        fault=fault,
        trouble=fault if fault and spec.get("unschedulable") else "",
        sub_health=str(sub_health.get("message") or "reported") if sub_health.get("status") == "True" else "",
    )


def gang_seen(group: Obj, job: Job) -> Gang:
    """`job`: whose it is, as it is written now."""
    status = group.get("status") or {}
    telling = [c for c in status.get("conditions") or [] if c.get("message") and c.get("status") == "True"]
    return Gang(
        phase=str(status.get("phase") or ""),
        text=str(telling[-1]["message"]) if telling else "",
        current=not pods.pod_group_change(job, group),
        made_at=read_stamp(group["metadata"].get("creationTimestamp")) or 0.0,
    )


# ---------------------------------------------------------------------------------------------------- the record


def read_record(status: Obj) -> Record:
    """What the operator wrote down. What cannot be read counts as not written: nothing breaks, little is forgotten."""
    kept = status.get("record")
    kept = kept if isinstance(kept, dict) else {}
    return Record(
        wave=_number(kept, "wave", 0),
        floor=_number(kept, "floor", 0),
        launched=_number(kept, "launched", -1),
        begun=_number(kept, "begun", -1),
        free=_number(kept, "free", -1),
        shape=str(kept.get("shape") or ""),
        charged=_number(kept, "charged", 0),
        failures=_number(kept, "failures", 0),
        done=tuple(
            (str(role), _indices(str(text))) for role, text in sorted(_mapping(kept.get("done")).items()) if text
        ),
        avoid=_stamped(kept.get("avoid")),
        shun=_stamped(kept.get("shun")),
        told=_number(kept, "told", 0),
        opened=_number(kept, "opened", 0),
        closed=_number(kept, "closed", 0),
        started_at=read_stamp(status.get("startTime")),
        ended_at=read_stamp(status.get("completionTime")),
    )


def _stamped(value: Any) -> tuple[tuple[str, float], ...]:
    return tuple((str(n), at) for n, t in _mapping(value).items() if (at := read_stamp(t)) is not None)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(kept: Obj, name: str, default: int) -> int:
    value = kept.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _indices(text: str) -> tuple[int, ...]:
    """`0-3,7`: how indexed Jobs write it."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found += range(int(first), min(int(last or first), MOST_REPLICAS) + 1)
    return tuple(found)


def spans(indices: tuple[int, ...]) -> str:
    """The other way round."""
    out: list[tuple[int, int]] = []
    for i in sorted(indices):
        if out and i == out[-1][1] + 1:
            out[-1] = (out[-1][0], i)
        else:
            out.append((i, i))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
