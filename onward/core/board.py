"""The board: all nodes with what is free on them, kept up to date pod by pod.

Nodes that differ in nothing a pod ever asks about (labels somebody mentions, taints, cordon) and are of about one size
are one *kind*: a rule is tried on the kind, not on each of its nodes. The nodes of a kind stand in a tree, see
`roomtree`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import mul
from typing import Any

from onward.core.placement import (
    HOSTNAME,
    PODS_WHEN_UNSAID,
    Room,
    Wish,
    barred,
    liking,
    term_label_keys,
)
from onward.core.roomtree import RoomTree

VERDICTS = 4096  # remembered by each kind
# How much is left on a node, in one number: a core counts as 4 GiB of memory, an accelerator as 8 cores.
UNITS = {"cpu": 1e-3, "memory": 1 / 2**32, "ephemeral-storage": 0.0}
ACCELERATOR = 8.0
Needs = tuple[tuple[int, int], ...]  # (which resource, how much)


class Spot:
    """One node on the board: what is free, and who is there."""

    __slots__ = ("emptiness", "free", "guards", "kind", "left", "residents", "room", "shares", "slot", "units")

    def __init__(self, room: Room, free: list[int], shares: list[float], units: list[float]) -> None:
        self.room, self.free, self.shares, self.units = room, free, shares, units
        self.residents: dict[str, Wish] = {}
        self.guards: dict[str, Wish] = {}  # residents that keep others off this node
        self.kind: Kind
        self.slot = 0
        self.emptiness = 0.0
        self.left = 0.0

    @property
    def name(self) -> str:
        return self.room.name

    def weigh(self) -> None:
        """`emptiness`, 0 to 10: the share that is free, of all resources alike. `left`: how much that is."""
        self.emptiness = sum(map(mul, self.shares, self.free))
        self.left = sum(map(mul, self.units, self.free))


class Kind:
    """Nodes that are alike but for what is on them."""

    def __init__(self, example: Room, width: int) -> None:
        self.example = example
        self.tree = RoomTree(width)
        self.spots: list[Spot | None] = []
        self.count = 0
        self.free: list[Counter[int]] = [Counter() for _ in range(width)]  # by resource: how many have so much
        self.sizes: Counter[tuple[int, ...]] = Counter()  # how many nodes of each size
        self._empty: list[int] = []
        self._verdicts: dict[str, tuple[str, float]] = {}

    def verdict(self, wish: Wish) -> tuple[str, float]:
        """Why such a pod cannot go there, or empty; and how much it would like to."""
        found = self._verdicts.get(wish.site)
        if found is None:
            if len(self._verdicts) > VERDICTS:
                self._verdicts.clear()
            found = self._verdicts[wish.site] = (barred(wish, self.example), liking(wish, self.example))
        return found

    def add(self, spot: Spot, size: tuple[int, ...]) -> None:
        if self._empty:
            spot.slot = self._empty.pop()
            self.spots[spot.slot] = spot
        else:
            spot.slot = len(self.spots)
            self.spots.append(spot)
            self.tree.grow(len(self.spots))
        spot.kind = self
        self.count += 1
        self.sizes[size] += 1
        for counts, value in zip(self.free, spot.free, strict=True):
            counts[value] += 1
        self.tree.put(spot.slot, spot.free, spot.emptiness, spot.left)

    def remove(self, spot: Spot, size: tuple[int, ...]) -> None:
        self.spots[spot.slot] = None
        self._empty.append(spot.slot)
        self.count -= 1
        _less(self.sizes, size)
        for counts, value in zip(self.free, spot.free, strict=True):
            _less(counts, value)
        self.tree.clear(spot.slot)

    def change(self, spot: Spot, needs: Needs, sign: int) -> None:
        free = spot.free
        for which, amount in needs:
            counts = self.free[which]
            _less(counts, free[which])
            free[which] += sign * amount
            counts[free[which]] += 1
        spot.weigh()
        self.tree.put(spot.slot, free, spot.emptiness, spot.left)

    def widen(self, width: int) -> None:
        self.tree.widen(width)
        while len(self.free) < width:
            self.free.append(Counter({0: self.count}))
        self.sizes = Counter({(*size, *[0] * (width - len(size))): n for size, n in self.sizes.items()})


def _less(counts: Counter[Any], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Board:
    """Nodes and the pods on them. `gains` grows whenever somebody who waits might have a chance that was not there."""

    def __init__(self, rooms: Iterable[Room] = ()) -> None:
        self.resources: dict[str, int] = {"pods": 0}
        self.spots: dict[str, Spot] = {}
        self.kinds: dict[tuple[object, ...], Kind] = {}
        self.total = [0]
        self._units = [0.0]
        self.gains = 0
        self.wide_guards: dict[str, tuple[Spot, Wish]] = {}  # pods that keep others out of more than one node
        self.guarded_labels: Counter[str] = Counter()
        self._homes: dict[str, Spot] = {}
        self._away: dict[str, tuple[str, Wish]] = {}  # pods on nodes that are not on the board
        self._node_keys: frozenset[str] = frozenset()
        for room in sorted(rooms, key=lambda r: (len(r.name), r.name)):  # node-2 before node-10
            self.add(room)

    def __len__(self) -> int:
        return len(self.spots)

    def __iter__(self) -> Iterator[Spot]:
        return iter(self.spots.values())

    # Nodes

    def add(self, room: Room) -> None:
        """A node, or what has become of it."""
        old = self.spots.get(room.name)
        if old is not None and old.room.same(room):
            return
        self._know(room.allocatable)
        residents = [wish for node, wish in self._away.values() if node == room.name]
        if old is not None:
            residents = list(old.residents.values())
            self._take_out(old)
        spot = Spot(room, list(self._size(room)), self._shares(room), self._units)
        spot.weigh()
        self.spots[room.name] = spot
        self._file(spot)
        for which, value in enumerate(self._size(room)):
            self.total[which] += value
        for wish in residents:
            self._away.pop(wish.key, None)
            self._settle(wish, spot)
        self.gains += 1

    def remove(self, name: str) -> None:
        spot = self.spots.pop(name, None)
        if spot is not None:
            self._away.update({key: (name, wish) for key, wish in spot.residents.items()})
            self._take_out(spot)

    def _take_out(self, spot: Spot) -> None:
        for wish in list(spot.residents.values()):
            self._unsettle(wish, spot)
        spot.kind.remove(spot, self._size(spot.room))
        for which, value in enumerate(self._size(spot.room)):
            self.total[which] -= value

    def _size(self, room: Room) -> tuple[int, ...]:
        have = {"pods": PODS_WHEN_UNSAID, **room.allocatable}
        return tuple(have.get(name, 0) for name in self.resources)

    def _shares(self, room: Room) -> list[float]:
        sizes = self._size(room)
        counted = [which for which, size in enumerate(sizes) if size > 0 and which]
        shares = [0.0] * len(sizes)
        for which in counted:
            shares[which] = 10.0 / (len(counted) * sizes[which])
        shares[0] = 1.0 / sizes[0] if sizes[0] > 0 else 0.0
        return shares

    def _file(self, spot: Spot) -> None:
        """To the other nodes of its kind."""
        room = spot.room
        labels = {k: v for k, v in room.labels.items() if k in self._node_keys}
        taints = tuple(sorted(str(sorted(t.items())) for t in room.taints))
        # About equal sizes too: where the most of each resource is on one node, a branch promises what it keeps.
        size = frozenset((which, value.bit_length()) for which, value in enumerate(self._size(room)) if value)
        key = (tuple(sorted(labels.items())), taints, room.unschedulable, size)
        kind = self.kinds.get(key)
        if kind is None:
            example = Room("", labels, {}, room.taints, room.unschedulable)
            kind = self.kinds[key] = Kind(example, len(self.resources))
        kind.add(spot, self._size(room))

    def _know(self, resources: Iterable[str]) -> None:
        new = [name for name in resources if name not in self.resources]
        if not new:
            return
        for name in new:
            self.resources[name] = len(self.resources)
        width = len(self.resources)
        self.total += [0] * len(new)
        self._units += [UNITS.get(name, ACCELERATOR) for name in new]
        for kind in self.kinds.values():
            kind.widen(width)
        for spot in self.spots.values():
            spot.free += [0] * len(new)
            spot.shares += [0.0] * len(new)
            spot.kind.tree.put(spot.slot, spot.free, spot.emptiness, spot.left)

    def consider(self, wish: Wish) -> None:
        """Look at nodes as this pod does: by the labels that it mentions, and the resources."""
        self._know(wish.requests)
        if wish.node_keys <= self._node_keys:
            return
        self._node_keys |= wish.node_keys
        self.kinds = {}
        for spot in self.spots.values():
            self._file(spot)

    # Pods

    def needs(self, wish: Wish) -> Needs:
        return tuple((self.resources[name], value) for name, value in wish.needs)

    def holds(self, key: str) -> str:
        """The node a pod is on, as far as the board knows; empty: on none."""
        spot = self._homes.get(key)
        return spot.name if spot is not None else self._away.get(key, ("",))[0]

    def put(self, wish: Wish, node: str) -> None:
        """A pod is on a node, or is about to be."""
        if wish.key in self._homes:
            self.undo(self._homes[wish.key].residents[wish.key])
        self._away.pop(wish.key, None)
        self._know(wish.requests)
        spot = self.spots.get(node)
        if spot is None:
            self._away[wish.key] = (node, wish)
        else:
            self._settle(wish, spot)

    def take(self, wish: Wish, spot: Spot) -> None:
        self._settle(wish, spot)

    def drop(self, key: str) -> None:
        """A pod is gone: what it had is free."""
        self._away.pop(key, None)
        spot = self._homes.get(key)
        if spot is not None:
            self._unsettle(spot.residents[key], spot)
            self.gains += 1

    def undo(self, wish: Wish) -> None:
        """It was only tried; nobody has gained anything."""
        self._unsettle(wish, self._homes[wish.key])

    def _settle(self, wish: Wish, spot: Spot) -> None:
        spot.residents[wish.key] = wish
        self._homes[wish.key] = spot
        spot.kind.change(spot, self.needs(wish), -1)
        if wish.apart:
            spot.guards[wish.key] = wish
            self.guarded_labels.update(key for term in wish.apart for key in term_label_keys(term))
            if any(term.get("topologyKey") != HOSTNAME for term in wish.apart):
                self.wide_guards[wish.key] = (spot, wish)

    def _unsettle(self, wish: Wish, spot: Spot) -> None:
        del spot.residents[wish.key]
        del self._homes[wish.key]
        spot.kind.change(spot, self.needs(wish), 1)
        if wish.apart:
            del spot.guards[wish.key]
            self.wide_guards.pop(wish.key, None)
            for term in wish.apart:
                for key in term_label_keys(term):
                    _less(self.guarded_labels, key)
