"""Where pods go: which nodes fit, which of them is best, and why none does. Pure.

The unit is a gang: all of its pods are placed, or none. A pod by itself is a gang of one. The reasons are those of
kube-scheduler, word for word, because people and programs know them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.core.selectors import holds, matches

Labels = Mapping[str, str]
Term = Mapping[str, Any]
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Wish:
    """A pod that needs a node."""

    key: str
    namespace: str
    labels: Labels
    requests: Mapping[str, int]
    selector: Labels = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    ports: frozenset[tuple[str, int]] = frozenset()  # of the node: (protocol, number)
    prefer: str = ""  # the node it was on before
    avoid: frozenset[str] = frozenset()  # nodes that failed it


@dataclass(frozen=True)
class Resident:
    """A pod that is on a node, as others see it."""

    namespace: str
    labels: Labels
    affinity: Mapping[str, Any] = field(default_factory=dict)
    ports: frozenset[tuple[str, int]] = frozenset()


@dataclass
class Room:
    """A node and what is on it. `take` changes it."""

    name: str
    labels: Labels
    allocatable: Mapping[str, int]
    taints: Sequence[Mapping[str, Any]] = ()
    unschedulable: bool = False
    used: dict[str, int] = field(default_factory=dict)
    residents: list[Resident] = field(default_factory=list)

    def take(self, wish: Wish) -> None:
        for name, value in wish.requests.items():
            self.used[name] = self.used.get(name, 0) + value
        self.residents.append(Resident(wish.namespace, wish.labels, wish.affinity, wish.ports))

    def copy(self) -> Room:
        return Room(
            self.name,
            self.labels,
            self.allocatable,
            self.taints,
            self.unschedulable,
            dict(self.used),
            list(self.residents),
        )


@dataclass(frozen=True)
class Placement:
    """`nodes`: pod -> node, for all of the gang or empty. `why`: for each pod that has no place, or for the gang."""

    nodes: Mapping[str, str]
    why: Mapping[str, str]


def place(gang: Sequence[Wish], rooms: Iterable[Room]) -> Placement:
    """All of the gang or nothing. The rooms that were given are not changed."""
    every = [room.copy() for room in rooms]
    chosen: dict[str, str] = {}
    why: dict[str, str] = {}
    for wish in gang:
        room, reason = best(wish, every)
        if room is None:
            why[wish.key] = reason
            continue
        room.take(wish)
        chosen[wish.key] = room.name
    if not why:
        return Placement(chosen, {})
    if len(gang) > 1:
        text = f"{len(chosen)}/{len(gang)} pods of the gang would fit"
        why = {wish.key: why.get(wish.key) or text for wish in gang}
    return Placement({}, why)


def best(wish: Wish, rooms: Sequence[Room]) -> tuple[Room | None, str]:
    """The node that fits best, or what is wrong with each."""
    world = _World(rooms)
    fits: list[Room] = []
    reasons: Counter[str] = Counter()
    for room in rooms:
        problems = misfits(wish, room, world)
        if problems:
            reasons.update(problems)
        else:
            fits.append(room)
    if fits:
        return max(fits, key=lambda room: (score(wish, room, world), _reversed(room.name))), ""
    return None, unavailable(len(rooms), reasons)


def _reversed(name: str) -> tuple[int, ...]:
    """Among equals the first by name, and node-2 before node-10."""
    return (-len(name), *(-ord(c) for c in name))


def unavailable(total: int, reasons: Mapping[str, int]) -> str:
    if not total:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {listed}."


class _World:
    """The topology domains that affinity speaks of, found once a pod."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = rooms

    def domain(self, room: Room, key: str) -> list[Room]:
        value = room.labels.get(key)
        if value is None:
            return []
        if key == "kubernetes.io/hostname":
            return [room]
        return [other for other in self._rooms if other.labels.get(key) == value]

    def anywhere(self, term: Term, namespace: str) -> bool:
        return any(_selects(term, namespace, r) for room in self._rooms for r in room.residents)

    def guarded(self) -> list[tuple[Room, Resident]]:
        """Pods that want certain others to stay away."""
        return [
            (room, r)
            for room in self._rooms
            for r in room.residents
            if (r.affinity.get("podAntiAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        ]


def misfits(wish: Wish, room: Room, world: _World) -> list[str]:
    """Why a pod cannot go there; the first kind of reason that applies, as kube-scheduler's filters run in order."""
    if room.unschedulable and not tolerated(UNSCHEDULABLE, wish.tolerations):
        return ["node(s) were unschedulable"]
    for taint in room.taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerated(taint, wish.tolerations):
            if taint.get("key") == UNSCHEDULABLE["key"]:
                return ["node(s) were unschedulable"]
            return [f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"]
    if not _selected(wish, room):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if room.name in wish.avoid:
        return ["node(s) were excluded after a failure"]
    if wish.ports and any(wish.ports & r.ports for r in room.residents):
        return ["node(s) didn't have free ports for the requested pod ports"]
    missing = shortages(wish, room)
    if missing:
        return missing
    return _neighbours(wish, room, world)


def shortages(wish: Wish, room: Room) -> list[str]:
    found = []
    if len(room.residents) + 1 > room.allocatable.get("pods", 110):
        found.append("Too many pods")
    for name, value in wish.requests.items():
        if value and room.used.get(name, 0) + value > room.allocatable.get(name, 0):
            found.append(f"Insufficient {name}")
    return found


def tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(tolerates(t, taint) for t in tolerations)


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def _selected(wish: Wish, room: Room) -> bool:
    if any(room.labels.get(k) != v for k, v in wish.selector.items()):
        return False
    required = (wish.affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_node_term(term, room) for term in required.get("nodeSelectorTerms") or [])


def _node_term(term: Term, room: Room) -> bool:
    """An empty term selects nothing."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    named = {"metadata.name": room.name}
    return all(holds(e, room.labels) for e in expressions) and all(holds(e, named) for e in fields)


def _selects(term: Term, namespace: str, resident: Resident) -> bool:
    """A pod affinity term. Without namespaces it speaks of the pod's own."""
    namespaces = term.get("namespaces") or []
    if term.get("namespaceSelector") is None and resident.namespace not in (namespaces or [namespace]):
        return False
    return matches(term.get("labelSelector"), resident.labels)


def _terms(affinity: Mapping[str, Any], kind: str) -> list[Term]:
    return list((affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or [])


def _neighbours(wish: Wish, room: Room, world: _World) -> list[str]:
    for term in _terms(wish.affinity, "podAffinity"):
        domain = world.domain(room, term.get("topologyKey", ""))
        near = any(_selects(term, wish.namespace, r) for other in domain for r in other.residents)
        own = Resident(wish.namespace, wish.labels)
        # The first of a group that wants to be together finds nobody: it may begin anywhere.
        first = bool(domain) and _selects(term, wish.namespace, own) and not world.anywhere(term, wish.namespace)
        if not near and not first:
            return ["node(s) didn't match pod affinity rules"]
    for term in _terms(wish.affinity, "podAntiAffinity"):
        domain = world.domain(room, term.get("topologyKey", ""))
        if any(_selects(term, wish.namespace, r) for other in domain for r in other.residents):
            return ["node(s) didn't match pod anti-affinity rules"]
    own = Resident(wish.namespace, wish.labels)
    for place_of, resident in world.guarded():
        for term in _terms(resident.affinity, "podAntiAffinity"):
            if _selects(term, resident.namespace, own) and room in world.domain(place_of, term.get("topologyKey", "")):
                return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def score(wish: Wish, room: Room, world: _World) -> float:
    """Higher is better: the previous node, preferences, then the emptiest."""
    points = 1000.0 if wish.prefer and wish.prefer == room.name else 0.0
    preferred = (wish.affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or []
    points += sum(float(p.get("weight") or 0) for p in preferred if _node_term(p.get("preference") or {}, room))
    for kind, sign in (("podAffinity", 1.0), ("podAntiAffinity", -1.0)):
        for entry in (wish.affinity.get(kind) or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or []:
            term = entry.get("podAffinityTerm") or {}
            domain = world.domain(room, term.get("topologyKey", ""))
            if any(_selects(term, wish.namespace, r) for other in domain for r in other.residents):
                points += sign * float(entry.get("weight") or 0)
    for taint in room.taints:
        if taint.get("effect") == "PreferNoSchedule" and not tolerated(taint, wish.tolerations):
            points -= 50.0
    free = [1.0 - room.used.get(n, 0) / total for n, total in room.allocatable.items() if total and n != "pods"]
    crowd = len(room.residents) / max(1, room.allocatable.get("pods", 110))
    return points + 10.0 * sum(free) / max(1, len(free)) - crowd
