"""The nodes that pods of one class can go to, best first. Pure.

The search goes down the trees of the board and takes the branch that promises most; a branch below which nothing fits
is never entered. It goes on where it was when the next pod of the class comes, so placing many equal pods costs little
more than placing one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from onward.core.board import Board, Kind, Spot
from onward.core.neighbours import NOT_NEAR, Neighbours
from onward.core.placement import Wish, barred, liking, short_of, unavailable

PREFERRED_POINTS = 1e4  # the previous node, above all other preferences
AVOIDED_POINTS = -1e6  # a node that failed it, below everything
EXCLUDED = "node(s) were excluded after a failure"
Place = tuple[str, str]  # a label of nodes and its value, such as a zone
SINGLE = -1  # stands where the number of a kind stands, for nodes that are looked at one by one


@dataclass(frozen=True)
class Reserve:
    """Nodes that a gang which waits too long has to itself: who comes later and asks for what it lacks is kept off."""

    gang: str
    wishes: tuple[Wish, ...]  # one of each class
    scarce: frozenset[str] | None  # resources that it lacks; None: it lacks something else, so all are kept off

    def keeps_off(self, wish: Wish, kind: Kind) -> bool:
        if self.scarce is not None and not any(name in self.scarce for name, _ in wish.needs):
            return False
        return any(could_go(mine, kind) for mine in self.wishes)

    @property
    def reason(self) -> str:
        return f'node(s) were set aside for gang "{self.gang}"'


def could_go(wish: Wish, kind: Kind) -> bool:
    if wish.particular:
        return any(spot is not None and not barred(wish, spot.room) for spot in kind.spots)
    return not kind.verdict(wish)[0]


class Candidates:
    """`best()` gives a node: the emptiest, or with `pack` the one with the least left. After placing a pod there call
    `took`. When it gives none, `why()` says what is wrong.
    """

    def __init__(
        self,
        board: Board,
        wish: Wish,
        reserves: Sequence[Reserve] = (),
        *,
        pack: bool = False,
        within: Place | None = None,
    ) -> None:
        board.consider(wish)
        self._within = within
        self._board, self._wish, self._pack = board, wish, pack
        self._needs = board.needs(wish)
        self._around = Neighbours(wish, board)
        self._heap: list[tuple[float, int, int, int]] = []  # (the smaller the better, order, kind, branch)
        self._kinds: list[Kind] = []
        self._likings: list[float] = []
        self._singles: list[Spot] = []
        self._refused: dict[str, str] = {}
        self._reasons: Counter[str] = Counter()
        for kind in board.kinds.values():
            self._open(kind, reserves)
        self._prefer()

    def _open(self, kind: Kind, reserves: Sequence[Reserve]) -> None:
        shut = next((reserve.reason for reserve in reserves if reserve.keeps_off(self._wish, kind)), "")
        if self._wish.particular:
            for spot in kind.spots:
                if spot is not None:
                    self._open_single(spot, shut)
            return
        why, points = kind.verdict(self._wish)
        if why or shut:
            self._reasons[why or shut] += kind.count
            return
        self._kinds.append(kind)
        self._likings.append(points)
        self._push(len(self._kinds) - 1, 1)

    def _open_single(self, spot: Spot, shut: str) -> None:
        why = barred(self._wish, spot.room) or shut
        if why:
            self._reasons[why] += 1
            return
        self._singles.append(spot)
        number = len(self._singles) - 1
        heappush(self._heap, (self._rank(spot, liking(self._wish, spot.room)), number, SINGLE, number))

    def _prefer(self) -> None:
        spot = self._board.spots.get(self._wish.prefer) if self._wish.prefer else None
        if spot is None or self._wish.particular or spot.kind not in self._kinds:
            return
        number, leaf = self._kinds.index(spot.kind), spot.kind.tree.leaves + spot.slot
        heappush(self._heap, (self._rank(spot, self._likings[number]), spot.slot, number, leaf))

    def _rank(self, spot: Spot, points: float) -> float:
        if self._around.picky:
            points += self._around.liking(spot)
        if self._wish.prefer == spot.name:
            points += PREFERRED_POINTS
        if spot.name in self._wish.avoid:
            points += AVOIDED_POINTS
        return (spot.left if self._pack else -spot.emptiness) - points

    def _push(self, number: int, branch: int) -> None:
        """If something below it may fit."""
        tree = self._kinds[number].tree
        most = tree.most
        for which, amount in self._needs:
            if most[which][branch] < amount:
                return
        promise = tree.least[branch] if self._pack else -tree.emptiest[branch]
        order = (branch << (tree.leaves.bit_length() - branch.bit_length())) - tree.leaves
        heappush(self._heap, (promise - self._likings[number] - self._around.most, order, number, branch))

    def best(self) -> Spot | None:
        heap = self._heap
        while heap:
            rank, order, number, branch = heappop(heap)
            if number != SINGLE and branch < self._kinds[number].tree.leaves:
                self._push(number, 2 * branch)
                self._push(number, 2 * branch + 1)
                continue
            spot = self._singles[branch] if number == SINGLE else self._leaf(number, branch)
            if spot is None or not self._fits(spot):
                continue
            why = EXCLUDED if spot.name in self._wish.exclude else self._refusal(spot)
            if why:
                self._refused[spot.name] = why
                continue
            points = liking(self._wish, spot.room) if number == SINGLE else self._likings[number]
            now = self._rank(spot, points)
            if now > rank:  # less good than it promised
                heappush(heap, (now, order, number, branch))
                continue
            self._last = (order, number, branch, points)
            return spot
        return None

    def _refusal(self, spot: Spot) -> str:
        if self._within is not None and spot.room.labels.get(self._within[0]) != self._within[1]:
            return NOT_NEAR
        return self._around.refusal(spot)

    def _leaf(self, number: int, branch: int) -> Spot | None:
        kind = self._kinds[number]
        slot = branch - kind.tree.leaves
        return kind.spots[slot] if slot < len(kind.spots) else None

    def _fits(self, spot: Spot) -> bool:
        free = spot.free
        return all(free[which] >= amount for which, amount in self._needs)

    def took(self, spot: Spot) -> None:
        """A pod went to what `best` gave last."""
        self._around.took(spot)
        order, number, branch, points = self._last
        heappush(self._heap, (self._rank(spot, points), order, number, branch))

    # When there is none

    def why(self) -> str:
        return unavailable(len(self._board), self.reasons())

    def reasons(self) -> Counter[str]:
        """How many nodes each reason is true of, now that `best` has found nothing."""
        reasons = Counter(self._reasons)
        singles = {spot.name for spot in self._singles}
        named = [self._board.spots[name] for name in self._wish.exclude if name in self._board.spots]
        excluded = {spot.name for spot in named if spot.name in singles or spot.kind in self._kinds}
        reasons[EXCLUDED] += len(excluded)
        names = list(self._board.resources)
        for which, amount in self._needs:
            reasons[short_of(names[which])] += self._short(which, amount, excluded)
        for name, why in self._refused.items():
            spot = self._board.spots[name]
            if name not in excluded and self._fits(spot):
                reasons[why] += 1
        return reasons

    def _short(self, which: int, amount: int, excluded: set[str]) -> int:
        """Nodes that have too little of a resource."""
        found = sum(n for kind in self._kinds for free, n in kind.free[which].items() if free < amount)
        found += sum(spot.free[which] < amount for spot in self._singles)
        return found - sum(self._board.spots[name].free[which] < amount for name in excluded)

    def scarce(self) -> frozenset[str] | None:
        """What would have to become free; None: not a matter of resources alone."""
        reasons = self.reasons()
        lacking = frozenset(name for name in self._board.resources if reasons[short_of(name)] > 0)
        return lacking if lacking and "pods" not in lacking else None
