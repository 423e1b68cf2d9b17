"""A pod that needs a node, a node, and the rules that keep the one off the other. Pure.

The reasons are those of kube-scheduler, word for word, because people and programs know them. What depends on the kind
of a node only (labels, taints, cordon) is here; what depends on the pods around is in `neighbours`, and how the best of
thousands of nodes is found in `board` and `candidates`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from onward.core.selectors import holds

Labels = Mapping[str, str]
Term = Mapping[str, Any]
Taint = Mapping[str, Any]
HOSTNAME = "kubernetes.io/hostname"
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PODS_WHEN_UNSAID = 110
T = TypeVar("T")
NO_KEYS: frozenset[str] = frozenset()


class once(Generic[T]):
    """Found out when first asked for. `functools.cached_property` takes a lock each time; there are many pods."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find, self.__doc__ = find, find.__doc__

    def __get__(self, obj: Any, owner: type) -> T:
        found = obj.__dict__[self._find.__name__] = self._find(obj)
        return found


@dataclass(frozen=True, eq=False)
class Wish:
    """A pod, as far as its place matters: one that needs a node, or one that is on a node already."""

    key: str  # namespace/name
    namespace: str
    labels: Labels
    requests: Mapping[str, int]
    selector: Labels = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    ports: frozenset[tuple[str, int]] = frozenset()  # of the node: (protocol, number)
    prefer: str = ""  # the node it was on before
    avoid: frozenset[str] = frozenset()  # nodes that failed it: taken when nothing else fits
    exclude: frozenset[str] = frozenset()  # nodes that it must not go to
    task: str = ""

    @once
    def site(self) -> str:
        """All that matters about the kind of node it may go to. Equal texts go to equal nodes."""
        return _text([dict(self.selector), self.affinity.get("nodeAffinity"), list(self.tolerations)])

    @once
    def company(self) -> str:
        """What it says about pods near it; empty: nothing."""
        said = [self.affinity.get("podAffinity"), self.affinity.get("podAntiAffinity")]
        return _text(said) if any(said) else ""

    @once
    def needs(self) -> tuple[tuple[str, int], ...]:
        return (("pods", 1), *sorted((name, value) for name, value in self.requests.items() if value))

    @once
    def node_keys(self) -> frozenset[str]:
        """The labels of nodes that it looks at, the host name aside."""
        if not self.selector and not self.affinity:
            return NO_KEYS
        terms = [*_node_terms(self), *(p.get("preference") or {} for p in node_preferences(self))]
        found = {str(e.get("key")) for term in terms for e in term.get("matchExpressions") or []}
        return frozenset({*found, *self.selector} - {HOSTNAME})

    @once
    def particular(self) -> bool:
        """It speaks of single nodes by name: each node is looked at, not each kind."""
        terms = [*_node_terms(self), *(p.get("preference") or {} for p in node_preferences(self))]
        named = any(
            term.get("matchFields") or any(e.get("key") == HOSTNAME for e in term.get("matchExpressions") or [])
            for term in terms
        )
        return HOSTNAME in self.selector or named

    @once
    def near(self) -> tuple[Term, ...]:
        return _pod_terms(self.affinity, "podAffinity")

    @once
    def apart(self) -> tuple[Term, ...]:
        return _pod_terms(self.affinity, "podAntiAffinity")

    @once
    def liked(self) -> tuple[tuple[float, Term], ...]:
        """Preferences about pods near it: a weight, below zero for those it would rather not meet."""
        found = []
        for kind, sign in (("podAffinity", 1.0), ("podAntiAffinity", -1.0)):
            for entry in (self.affinity.get(kind) or {}).get(PREFERRED) or []:
                found.append((sign * float(entry.get("weight") or 0), entry.get("podAffinityTerm") or {}))
        return tuple(found)

    @once
    def label_keys(self) -> frozenset[str]:
        """The labels of other pods that it looks at."""
        if not self.affinity:
            return NO_KEYS
        terms = [*self.near, *self.apart, *(term for _, term in self.liked)]
        return frozenset(key for term in terms for key in term_label_keys(term))


@dataclass(eq=False)
class Room:
    """A node, as it is when nothing is on it."""

    name: str
    labels: Labels
    allocatable: Mapping[str, int]
    taints: Sequence[Taint] = ()
    unschedulable: bool = False

    def same(self, other: Room) -> bool:
        return (self.labels, dict(self.allocatable), list(self.taints), self.unschedulable) == (
            other.labels,
            dict(other.allocatable),
            list(other.taints),
            other.unschedulable,
        )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _node_terms(wish: Wish) -> list[Term]:
    required = (wish.affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    return list(required.get("nodeSelectorTerms") or [])


def node_preferences(wish: Wish) -> list[Term]:
    return list((wish.affinity.get("nodeAffinity") or {}).get(PREFERRED) or [])


def _pod_terms(affinity: Mapping[str, Any], kind: str) -> tuple[Term, ...]:
    return tuple((affinity.get(kind) or {}).get(REQUIRED) or ())


def term_label_keys(term: Term) -> set[str]:
    selector = term.get("labelSelector") or {}
    listed = {str(e.get("key")) for e in selector.get("matchExpressions") or []}
    return listed | set(selector.get("matchLabels") or {})


def barred(wish: Wish, room: Room) -> str:
    """Why a pod cannot go to such a node, however empty it is; the first that applies, in kube-scheduler's order."""
    if room.unschedulable and not tolerated(UNSCHEDULABLE, wish.tolerations):
        return "node(s) were unschedulable"
    for taint in room.taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerated(taint, wish.tolerations):
            if taint.get("key") == UNSCHEDULABLE["key"]:
                return "node(s) were unschedulable"
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
    if not _selected(wish, room):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def liking(wish: Wish, room: Room) -> float:
    """How much the pod's preferences speak for such a node."""
    chosen = [p for p in node_preferences(wish) if _node_term(p.get("preference") or {}, room)]
    points = sum(float(p.get("weight") or 0) for p in chosen)
    for taint in room.taints:
        if taint.get("effect") == "PreferNoSchedule" and not tolerated(taint, wish.tolerations):
            points -= 50.0
    return points


def tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(tolerates(t, taint) for t in tolerations)


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
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
    if not (wish.affinity.get("nodeAffinity") or {}).get(REQUIRED):
        return True
    return any(_node_term(term, room) for term in _node_terms(wish))


def _node_term(term: Term, room: Room) -> bool:
    """An empty term selects nothing."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    named = {"metadata.name": room.name}
    return all(holds(e, room.labels) for e in expressions) and all(holds(e, named) for e in fields)


def short_of(resource: str) -> str:
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


def unavailable(total: int, reasons: Mapping[str, int]) -> str:
    if not total:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count > 0))
    return f"0/{total} nodes are available: {listed}."
