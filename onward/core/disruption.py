"""What a PodDisruptionBudget asks for and allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Obj = dict[str, Any]


def needed(spec: Mapping[str, Any], count: int) -> int:
    """How many of so many pods must be healthy."""
    if "minAvailable" in spec:
        return share(spec["minAvailable"], count)
    return max(0, count - share(spec.get("maxUnavailable", 0), count))


def share(value: int | str, of: int) -> int:
    """A number, or a part in percent: of a part of a pod the whole pod counts."""
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * of // 100)


def healthy(pod: Obj) -> bool:
    return ready(pod) and not pod["metadata"].get("deletionTimestamp")


def ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def status(budget: Obj, pods: list[Obj], now: str) -> Obj:
    """What the disruption controller of a real cluster writes down. `now`: a time as objects have it."""
    current, desired = sum(map(healthy, pods)), needed(budget["spec"], len(pods))
    allowed = max(0, current - desired) if pods else 0
    generation = budget["metadata"].get("generation", 1)
    found = {
        "currentHealthy": current,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": len(pods),
        "observedGeneration": generation,
    }
    holds, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    before: list[Obj] = (budget.get("status") or {}).get("conditions") or []
    old: Obj = next((each for each in before if each.get("type") == "DisruptionAllowed"), {})
    since = old.get("lastTransitionTime") if old.get("status") == holds else None
    condition = {"type": "DisruptionAllowed", "status": holds, "reason": reason, "message": ""}
    condition |= {"observedGeneration": generation, "lastTransitionTime": since or now}
    return {**found, "conditions": [*(each for each in before if each is not old), condition]}
