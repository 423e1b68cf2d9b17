"""The status of a pod, worked out of what its shim wrote down: phase, conditions, containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core import quantity
from onward.kube.objects import Obj, stamp

Facts = Mapping[str, Any]  # as a shim writes them; empty while there is none


def status(
    pod: Obj,
    facts: Facts,
    *,
    now: float,
    addresses: Mapping[str, str],
    started_at: float,
    problem: tuple[str, str, str] | None = None,
    ready: bool = True,
) -> Obj:
    """`problem`: (container or "", reason, message) why nothing runs yet. `ready`: False on a node that is lost."""
    spec, old = pod["spec"], pod.get("status") or {}
    inits = spec.get("initContainers") or []
    init_statuses = [_container(c, facts, problem, old.get("initContainerStatuses"), True) for c in inits]
    main_statuses = [_container(c, facts, problem, old.get("containerStatuses"), False) for c in spec["containers"]]
    phase = _phase(spec, init_statuses, main_statuses, facts)
    result: Obj = {
        **_seen(pod),
        "phase": phase,
        "hostIP": addresses["hostIP"],
        "hostIPs": [{"ip": addresses["hostIP"]}],
        "startTime": stamp(started_at),
        "qosClass": old.get("qosClass") or qos_class(spec),
        "containerStatuses": main_statuses,
    }
    if inits:
        result["initContainerStatuses"] = init_statuses
    if addresses.get("podIP"):
        result |= {"podIP": addresses["podIP"], "podIPs": [{"ip": addresses["podIP"]}]}
    if facts.get("reason"):
        result |= {"reason": facts["reason"], "message": facts.get("message", "")}
    result["conditions"] = _conditions(pod, phase, facts, init_statuses, main_statuses, now, bool(problem), ready)
    return result


def failed(pod: Obj, reason: str, message: str, addresses: Mapping[str, str], now: float) -> Obj:
    """The node refuses the pod."""
    return {
        **_seen(pod),
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": stamp(now),
        "hostIP": addresses["hostIP"],
        "qosClass": (pod.get("status") or {}).get("qosClass") or qos_class(pod["spec"]),
    }


def _seen(pod: Obj) -> Obj:
    """Of which spec this is the status: since 1.35 pods say it, too."""
    generation = pod["metadata"].get("generation")
    return {"observedGeneration": generation} if generation else {}


def _container(container: Obj, facts: Facts, problem: Any, old: list[Obj] | None, init: bool) -> Obj:
    name = container["name"]
    known = (facts.get("containers") or {}).get(name)
    image = container.get("image", "")
    found: Obj = {
        "name": name,
        "image": image,
        "imageID": f"onward://host/{image}" if known and known.get("containerID") else "",
        "restartCount": 0,
        "ready": False,
        "started": False,
        "state": {},
        "lastState": {},
    }
    if known is None:
        reason, message = "PodInitializing" if init is False and _has_inits(facts) else "ContainerCreating", ""
        if problem and problem[0] in ("", name) and problem[1]:
            reason, message = problem[1], problem[2]
        found["state"] = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        return found
    found |= {"restartCount": known["restarts"], "ready": known["ready"], "started": known["started"]}
    if init and known["state"] == "terminated" and known.get("exitCode") == 0:
        found["ready"] = True
    found["state"] = _state(known)
    if known.get("last"):
        found["lastState"] = {"terminated": _terminated(known["last"])}
    if known.get("containerID"):
        found["containerID"] = known["containerID"]
    return found


def _has_inits(facts: Facts) -> bool:
    return bool(facts.get("containers")) and not facts.get("initialized", True)


def _state(known: Mapping[str, Any]) -> Obj:
    match known["state"]:
        case "running":
            return {"running": {"startedAt": stamp(known["startedAt"])}}
        case "terminated":
            return {"terminated": _terminated(known)}
    message = {"message": known["message"]} if known.get("message") else {}
    return {"waiting": {"reason": known.get("reason") or "ContainerCreating", **message}}


def _terminated(known: Mapping[str, Any]) -> Obj:
    found = {
        "exitCode": known.get("exitCode", 0),
        "reason": known.get("reason", "Completed"),
        "startedAt": stamp(known["startedAt"]),
        "finishedAt": stamp(known["finishedAt"]),
        "containerID": known.get("containerID", ""),
    }
    if known.get("message") and known.get("reason") != "CrashLoopBackOff":
        found["message"] = known["message"]
    return found


def _phase(spec: Obj, inits: list[Obj], mains: list[Obj], facts: Facts) -> str:
    """The kubelet's rules."""
    done = bool(facts.get("done"))
    codes = [_exit_code(c) for c in mains]
    if done:
        if facts.get("reason"):
            return "Failed"
        if any(_exit_code(c) not in (0, None) for c in inits if not _sidecar(spec, c["name"])):
            return "Failed"
        if any(code is None for code in codes):
            return "Failed"  # it was ended before all of them had run
        return "Succeeded" if all(code == 0 for code in codes) else "Failed"
    if not facts.get("initialized") or not facts.get("containers"):
        return "Pending"
    begun = any("running" in c["state"] or "terminated" in c["state"] or c["lastState"] for c in mains)
    return "Running" if begun else "Pending"


def _sidecar(spec: Obj, name: str) -> bool:
    return any(c["name"] == name and c.get("restartPolicy") == "Always" for c in spec.get("initContainers") or [])


def _exit_code(status: Obj) -> int | None:
    code = status["state"].get("terminated", {}).get("exitCode")
    return int(code) if code is not None else None


def _conditions(
    pod: Obj, phase: str, facts: Facts, inits: list[Obj], mains: list[Obj], now: float, problem: bool, ready: bool
) -> list[Obj]:
    spec = pod["spec"]
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    completed = {"reason": "PodCompleted"} if phase == "Succeeded" else {}
    found: list[Obj] = []

    def add(kind: str, holds: bool, **more: str) -> None:
        entry: Obj = {"type": kind, "status": "True" if holds else "False", **(more if not holds or completed else {})}
        before = old.get(kind)
        same = before is not None and before.get("status") == entry["status"]
        entry["lastTransitionTime"] = before["lastTransitionTime"] if same and before else stamp(now)
        entry |= {"lastProbeTime": None, **_seen(pod)}
        found.append(entry)

    add("PodReadyToStartContainers", bool(facts.get("containers")) and not facts.get("done"))
    initialized = bool(facts.get("initialized")) or (not inits and not problem) or phase == "Succeeded"
    late = [c["name"] for c in inits if not c["ready"]]
    add(
        "Initialized",
        initialized,
        **(completed or {"reason": "ContainersNotInitialized", "message": _names("incomplete", late)}),
    )
    unready = [c["name"] for c in mains if not c["ready"]]
    unready += [c["name"] for c in inits if _sidecar(spec, c["name"]) and not c["ready"]]
    all_ready = not unready and phase == "Running"
    more = completed or {"reason": "ContainersNotReady", "message": _names("unready", unready)}
    if phase == "Failed":
        more = {"reason": "PodFailed"}
    gates = [g["conditionType"] for g in spec.get("readinessGates") or []]
    open_gates = [g for g in gates if (old.get(g) or {}).get("status") != "True"]
    if all_ready and open_gates:
        gate_more = {
            "reason": "ReadinessGatesNotReady",
            "message": f'corresponding condition of pod readiness gate "{open_gates[0]}" does not exist.',
        }
        add("Ready", False, **gate_more)
    else:
        add("Ready", all_ready and ready, **more)
    add("ContainersReady", all_ready, **more)
    scheduled = old.get("PodScheduled") or {}
    add("PodScheduled", True)
    if scheduled.get("status") == "True":
        found[-1]["lastTransitionTime"] = scheduled["lastTransitionTime"]
    ours = {c["type"] for c in found}
    return found + [c for kind, c in old.items() if kind not in ours]


def _names(what: str, names: list[str]) -> str:
    return f"containers with {what} status: [{' '.join(names)}]"


def qos_class(spec: Obj) -> str:
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    given = [c.get("resources") or {} for c in every]
    limits = [{k: v for k, v in (r.get("limits") or {}).items() if k in ("cpu", "memory")} for r in given]
    requests = [{k: v for k, v in (r.get("requests") or {}).items() if k in ("cpu", "memory")} for r in given]
    if not any(limits) and not any(requests):
        return "BestEffort"
    for limit, request in zip(limits, requests, strict=True):
        if set(limit) != {"cpu", "memory"}:
            return "Burstable"
        if any(quantity.parse(request.get(k, v)) != quantity.parse(v) for k, v in limit.items()):
            return "Burstable"
    return "Guaranteed"
