"""Which pods belong together, and in which order gangs are looked at.

So far each pod is a gang of one; PodGroups come here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onward.kube.objects import Obj, key_of


@dataclass
class Gang:
    """Pods that are placed together, or not at all."""

    key: str
    priority: int
    since: str
    pods: list[Obj] = field(default_factory=list)


def gang_key(pod: Obj) -> str:
    return key_of(pod)


def waiting_gangs(pods: Iterable[Obj]) -> list[Gang]:
    """Those with the highest priority first, among them who has waited longest."""
    found: dict[str, Gang] = {}
    for pod in pods:
        key = gang_key(pod)
        priority = int(pod["spec"].get("priority") or 0)
        since = str(pod["metadata"].get("creationTimestamp") or "")
        gang = found.setdefault(key, Gang(key, priority, since))
        gang.priority, gang.since = max(gang.priority, priority), min(gang.since, since)
        gang.pods.append(pod)
    return sorted(found.values(), key=lambda g: (-g.priority, g.since, g.key))
