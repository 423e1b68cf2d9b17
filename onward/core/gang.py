"""One gang on the board: all it needs, or nothing. Pure but for the board.

A gang that has not started gets at least `min_member` pods placed at once (those that are on nodes already count), and
for each task its own minimum; otherwise the board is left as it was. One that has started is completed pod by pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onward.core.board import Board
from onward.core.candidates import Candidates, Place, Reserve
from onward.core.neighbours import selects
from onward.core.placement import Wish

PLACES = 64  # tried at most, where a gang wants to be in one of many
NOT_ENOUGH_RESOURCES = "NotEnoughResources"
NOT_ENOUGH_PODS = "NotEnoughTasks"  # Volcano's words
NOT_ENOUGH_OF_TASK = "NotEnoughPodsOfTask"


@dataclass
class Gang:
    """Pods that belong together. A pod by itself is a gang of one, and has no name of its own."""

    key: str  # namespace/name
    pending: list[Wish]
    min_member: int = 1
    min_task: Mapping[str, int] = field(default_factory=dict)
    held: int = 0  # pods that have a node, or have done their work
    held_tasks: Mapping[str, int] = field(default_factory=dict)
    started: bool = False  # it once had all it needs
    priority: int = 0
    created: float = 0.0
    since: float = 0.0  # the oldest of its pods has waited since then
    queue: str = ""
    single: bool = False

    @property
    def missing(self) -> int:
        """How many more it takes until the gang is whole."""
        return max(0, self.min_member - self.held)

    @property
    def broken(self) -> bool:
        """It was whole, and is not now."""
        return self.started and self.missing > 0

    @property
    def partial(self) -> bool:
        """It holds nodes for nothing until it has the rest."""
        return self.held > 0 and self.missing > 0

    def task_minima(self) -> Mapping[str, int]:
        """A minimum for the gang below the sum of those of its tasks lets the tasks free, as in Volcano."""
        return self.min_task if sum(self.min_task.values()) <= self.min_member else {}


@dataclass
class Outcome:
    """What became of a gang. `nodes` is empty when it waits: then the board is as it was."""

    gang: Gang
    nodes: dict[str, str] = field(default_factory=dict)  # pod -> node
    left: dict[str, str] = field(default_factory=dict)  # pod that has none -> why
    reason: str = ""  # why the gang waits; empty: it does not
    message: str = ""
    could: int = 0  # of `min_member`, how many could have a node, those that have one included
    scarce: frozenset[str] | None = None
    blocked: list[Wish] = field(default_factory=list)  # one of each class that did not fit

    @property
    def waits(self) -> bool:
        return bool(self.reason)

    @property
    def incomplete(self) -> bool:
        """Pods are missing, not nodes."""
        return self.reason in (NOT_ENOUGH_PODS, NOT_ENOUGH_OF_TASK)


class Allowance:
    """What a queue may still take. Without limits it allows everything."""

    def __init__(self, queue: str = "", left: Mapping[str, int] | None = None) -> None:
        self._queue, self._left = queue, dict(left or {})
        self.refused = False

    def refuses(self, wish: Wish) -> str:
        over = [name for name, value in wish.needs if name in self._left and value > self._left[name]]
        if not over:
            return ""
        self.refused = True
        return f'queue "{self._queue}" may not use more {", ".join(over)} (its capability)'

    def use(self, wish: Wish, sign: int = 1) -> None:
        for name, value in wish.needs:
            if name in self._left:
                self._left[name] -= sign * value


def attempt(board: Board, gang: Gang, reserves: Sequence[Reserve] = (), allowance: Allowance | None = None) -> Outcome:
    """Place the gang, or say why not."""
    allowance = allowance or Allowance()
    if not gang.started:
        short = _too_few(gang)
        if short is not None:
            return short
    classes = _classes(board, gang)
    outcome = _try(board, gang, classes, reserves, allowance, pack=False)
    if outcome.waits and len({wishes[0].needs for wishes in classes}) > 1 and not allowance.refused:
        outcome = _try(board, gang, classes, reserves, allowance, pack=True)
    if outcome.waits and not allowance.refused:
        for place in _meeting_places(board, gang):
            other = _try(board, gang, classes, reserves, allowance, pack=True, within=place)
            if not other.waits:
                return other
    return outcome


def _meeting_places(board: Board, gang: Gang) -> list[Place]:
    """Of a gang whose pods must be near one another: where it could begin, the roomiest place first."""
    wish = gang.pending[0] if gang.pending and not gang.held else None
    terms = [term for term in wish.near if selects(term, wish.namespace, wish)] if wish is not None else []
    if not terms:
        return []
    key = str(terms[0].get("topologyKey", ""))
    left: Counter[str] = Counter()
    for spot in board:
        if key in spot.room.labels:
            left[spot.room.labels[key]] += round(spot.left)
    return [(key, value) for value, _ in left.most_common(PLACES)]


def _too_few(gang: Gang) -> Outcome | None:
    """There are not as many pods as it needs: nothing to try yet."""
    there = gang.held + len(gang.pending)
    if there < gang.min_member:
        text = f"{there} of {gang.min_member} pods exist"
        return Outcome(gang, reason=NOT_ENOUGH_PODS, message=text, could=gang.held, left=_all(gang, text))
    tasks = Counter(wish.task for wish in gang.pending) + Counter(gang.held_tasks)
    few = [f"{tasks[t]} of {n} pods of task {t}" for t, n in sorted(gang.task_minima().items()) if tasks[t] < n]
    if few:
        text = f"{', '.join(few)} exist"
        return Outcome(gang, reason=NOT_ENOUGH_OF_TASK, message=text, could=gang.held, left=_all(gang, text))
    return None


def _all(gang: Gang, why: str) -> dict[str, str]:
    return {wish.key: why for wish in gang.pending}


def natural(wish: Wish) -> tuple[int, str]:
    """worker-2 before worker-10."""
    return (len(wish.key), wish.key)


def _classes(board: Board, gang: Gang) -> list[list[Wish]]:
    """Pods that can stand for one another, the ones that must be there first, then the largest."""
    seen = frozenset(board.guarded_labels).union(*(wish.label_keys for wish in gang.pending))
    looked_at = sorted(seen)
    must = _must(gang)
    found: dict[tuple[object, ...], list[Wish]] = {}
    for wish in sorted(gang.pending, key=natural) if len(gang.pending) > 1 else gang.pending:
        labels = tuple(wish.labels.get(key) for key in looked_at)
        rest = (wish.task, wish.namespace, wish.ports, wish.prefer, wish.avoid, wish.exclude)
        found.setdefault((wish.key in must, wish.site, wish.company, wish.needs, labels, rest), []).append(wish)
    order = sorted(found.items(), key=lambda item: (not item[0][0], -_weight(board, item[1][0])))
    return [wishes for _, wishes in order]


def _must(gang: Gang) -> set[str]:
    found: set[str] = set()
    if gang.started:
        return found
    for task, minimum in gang.task_minima().items():
        mine = sorted((wish for wish in gang.pending if wish.task == task), key=natural)
        found |= {wish.key for wish in mine[: max(0, minimum - gang.held_tasks.get(task, 0))]}
    return found


def _weight(board: Board, wish: Wish) -> float:
    """Its largest share of what the cluster has."""
    shares = [0.0]
    for name, value in wish.needs:
        which = board.resources.get(name)
        shares.append(value / max(1, board.total[which]) if which is not None else float(value))
    return max(shares)


def _try(
    board: Board,
    gang: Gang,
    classes: Iterable[list[Wish]],
    reserves: Sequence[Reserve],
    allowance: Allowance,
    *,
    pack: bool,
    within: Place | None = None,
) -> Outcome:
    outcome = Outcome(gang)
    placed: list[Wish] = []
    lacking: list[frozenset[str] | None] = []
    for wishes in classes:
        search = Candidates(board, wishes[0], reserves, pack=pack, within=within)
        why = ""
        for wish in wishes:
            spot = None
            if not why:
                why = allowance.refuses(wish)
                spot = None if why else search.best()
            if spot is None:
                if not why:
                    why = search.why()
                    lacking.append(search.scarce())
                    outcome.blocked.append(wish)
                outcome.left[wish.key] = why
                continue
            board.take(wish, spot)
            search.took(spot)
            allowance.use(wish)
            placed.append(wish)
            outcome.nodes[wish.key] = spot.name
    outcome.could = gang.held + len(placed)
    outcome.scarce = None if None in lacking else frozenset().union(*(each for each in lacking if each))
    if not gang.started and not _whole(gang, placed):
        outcome.reason = NOT_ENOUGH_RESOURCES
        outcome.message = next(iter(outcome.left.values()))
        outcome.nodes = {}
        for wish in placed:
            board.undo(wish)
            allowance.use(wish, -1)
            outcome.left[wish.key] = outcome.message
    elif gang.broken and gang.held + len(placed) < gang.min_member:
        outcome.reason = NOT_ENOUGH_RESOURCES
        outcome.message = next(iter(outcome.left.values()), "")
    return outcome


def _whole(gang: Gang, placed: Sequence[Wish]) -> bool:
    if gang.held + len(placed) < gang.min_member:
        return False
    tasks = Counter(wish.task for wish in placed) + Counter(gang.held_tasks)
    return all(tasks[task] >= n for task, n in gang.task_minima().items())


def could_ever(board: Board, gang: Gang) -> str:
    """Why this gang would not fit into an empty cluster; empty: it would, as far as each class by itself can tell."""
    for wishes in _classes(board, gang):
        wish = wishes[0]
        board.consider(wish)
        needs = board.needs(wish)
        room = 0
        for kind in board.kinds.values():
            if not wish.particular and kind.verdict(wish)[0]:
                continue
            for size, count in kind.sizes.items():
                room += count * min(size[which] // amount for which, amount in needs)
        wanted = len(wishes) - max(0, len(gang.pending) - gang.missing)
        if room < wanted:
            return f"{room} of {wanted} such pods would fit into the whole cluster if it were empty"
    return ""
