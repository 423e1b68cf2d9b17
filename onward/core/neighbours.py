"""What the pods around mean for a pod: who must be near, who must not, and who would be welcome. Pure.

Rules about the host are looked up on the node itself, so they cost the same in any cluster. Rules about wider places
(a zone) and about pods that must be near are counted once for all pods of a class.
"""

from __future__ import annotations

from collections import Counter

from onward.core.board import Board, Spot
from onward.core.placement import HOSTNAME, Term, Wish
from onward.core.selectors import matches

NOT_NEAR = "node(s) didn't match pod affinity rules"
TOO_NEAR = "node(s) didn't match pod anti-affinity rules"
GUARDED = "node(s) didn't satisfy existing pods anti-affinity rules"
PORTS = "node(s) didn't have free ports for the requested pod ports"


def selects(term: Term, namespace: str, other: Wish) -> bool:
    """A pod affinity term. Without namespaces it speaks of the pod's own."""
    namespaces = term.get("namespaces") or []
    if term.get("namespaceSelector") is None and other.namespace not in (namespaces or [namespace]):
        return False
    return matches(term.get("labelSelector"), other.labels)


class _Count:
    """How many pods that a term speaks of are in each place."""

    def __init__(self, term: Term, wish: Wish, board: Board) -> None:
        self.key, self._own = str(term.get("topologyKey", "")), selects(term, wish.namespace, wish)
        self._there: Counter[str] = Counter()
        for spot in board:
            found = sum(selects(term, wish.namespace, other) for other in spot.residents.values())
            if found and self.key in spot.room.labels:
                self._there[spot.room.labels[self.key]] += found
        self._any = bool(self._there)

    def at(self, spot: Spot) -> int:
        return self._there[spot.room.labels.get(self.key, "")] if self.key in spot.room.labels else 0

    def may_begin(self, spot: Spot) -> bool:
        """The first of a group that wants to be together finds nobody: it may begin anywhere."""
        return self._own and not self._any and self.key in spot.room.labels

    def took(self, spot: Spot) -> None:
        if self._own and self.key in spot.room.labels:
            self._there[spot.room.labels[self.key]] += 1
            self._any = True


class Neighbours:
    """For one class of pods on one board. `took` after each pod of it that was placed."""

    def __init__(self, wish: Wish, board: Board) -> None:
        self._wish = wish
        self._near = [_Count(term, wish, board) for term in wish.near]
        self._apart_here = [term for term in wish.apart if term.get("topologyKey") == HOSTNAME]
        self._apart_wide = [_Count(term, wish, board) for term in wish.apart if term.get("topologyKey") != HOSTNAME]
        self._liked = [(weight, _Count(term, wish, board)) for weight, term in wish.liked]
        self._closed = self._wide_guards(board)
        self.picky = bool(self._liked)
        self.most = sum(weight for weight, _ in self._liked if weight > 0)

    def _wide_guards(self, board: Board) -> set[tuple[str, str]]:
        found = set()
        for spot, guard in board.wide_guards.values():
            for term in guard.apart:
                key = str(term.get("topologyKey", ""))
                if key != HOSTNAME and key in spot.room.labels and selects(term, guard.namespace, self._wish):
                    found.add((key, spot.room.labels[key]))
        return found

    def refusal(self, spot: Spot) -> str:
        """Why not there; empty: nobody minds."""
        wish = self._wish
        if wish.ports and any(wish.ports & other.ports for other in spot.residents.values()):
            return PORTS
        for count in self._near:
            if not count.at(spot) and not count.may_begin(spot):
                return NOT_NEAR
        if any(count.at(spot) for count in self._apart_wide):
            return TOO_NEAR
        for term in self._apart_here:
            if any(selects(term, wish.namespace, other) for other in spot.residents.values()):
                return TOO_NEAR
        if self._closed and any(spot.room.labels.get(key) == value for key, value in self._closed):
            return GUARDED
        for guard in spot.guards.values():
            for term in guard.apart:
                if term.get("topologyKey") == HOSTNAME and selects(term, guard.namespace, wish):
                    return GUARDED
        return ""

    def liking(self, spot: Spot) -> float:
        return sum(weight for weight, count in self._liked if count.at(spot))

    def took(self, spot: Spot) -> None:
        for count in (*self._near, *self._apart_wide, *(count for _, count in self._liked)):
            count.took(spot)
