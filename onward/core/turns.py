"""Whose turn it is: the order in which gangs are tried, what their queues allow, and who is held back so that nobody
starves. Pure but for the board.

1. Gangs that had all they need and lost a pod, or of which only a part could be bound, come first: they hold the rest
   for nothing until they are whole.
2. Then the higher priority; among equals the queue that has least for its weight; in a queue who came first.
3. Whoever does not fit is passed by those behind it: small gangs fill what a big one cannot use.
4. A gang that has waited for `patience_s` is not passed any more: nodes that its pods could use are closed to everybody
   behind it who asks for what it lacks, until it starts. Not so for one that would not fit into an empty cluster, or
   that waits for its queue. Since nobody is ever evicted, a high priority is not held back by a low one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onward.core.board import Board
from onward.core.candidates import Reserve
from onward.core.gang import NOT_ENOUGH_RESOURCES, Allowance, Gang, Outcome, attempt, could_ever

PATIENCE_S = 120.0
DEFAULT_QUEUE = "default"
QUEUE_CLOSED = "QueueClosed"
NO_QUEUE = "QueueNotFound"


@dataclass
class Queue:
    """`used` is what its gangs hold now."""

    name: str
    weight: int = 1
    capability: Mapping[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    open: bool = True

    def allowance(self) -> Allowance:
        return Allowance(self.name, {name: top - self.used.get(name, 0) for name, top in self.capability.items()})

    def share(self, board: Board) -> float:
        """Of the resource of which it has the largest part, that part, by its weight."""
        parts = [
            value / board.total[board.resources[name]]
            for name, value in self.used.items()
            if name in board.resources and name != "pods" and board.total[board.resources[name]]
        ]
        return max(parts, default=0.0) / max(1, self.weight)


class Memory:
    """Gangs that did not fit need not be tried again while nothing has changed for them."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[object, Outcome]] = {}

    def recall(self, key: str, state: object) -> Outcome | None:
        found = self._tried.get(key)
        return found[1] if found is not None and found[0] == state else None

    def keep(self, key: str, state: object, outcome: Outcome) -> None:
        self._tried[key] = (state, outcome)

    def forget_all_but(self, keys: Iterable[str]) -> None:
        kept = set(keys)
        self._tried = {key: value for key, value in self._tried.items() if key in kept}


def take_turns(
    board: Board,
    gangs: Iterable[Gang],
    queues: Mapping[str, Queue],
    now: float,
    *,
    patience_s: float = PATIENCE_S,
    memory: Memory | None = None,
) -> list[Outcome]:
    """Try every gang once, in its turn. What was placed is on the board."""
    memory = memory or Memory()
    reserves: list[Reserve] = []
    outcomes = []
    shapes: dict[object, Outcome] = {}
    for gang in _in_order(board, list(gangs), queues):
        outcome = _one(board, gang, queues, reserves, memory, shapes)
        outcomes.append(outcome)
        lacks = outcome.reason == NOT_ENOUGH_RESOURCES and outcome.blocked and not gang.broken
        if lacks and now - gang.since >= patience_s and not could_ever(board, gang):
            reserves.append(Reserve(gang.key, tuple(outcome.blocked), outcome.scarce))
    memory.forget_all_but(outcome.gang.key for outcome in outcomes if outcome.waits)
    return outcomes


def _one(
    board: Board,
    gang: Gang,
    queues: Mapping[str, Queue],
    reserves: Sequence[Reserve],
    memory: Memory,
    shapes: dict[object, Outcome],
) -> Outcome:
    queue = queues.get(gang.queue) if gang.queue else None
    if gang.queue and (queue is None or not queue.open) and not gang.broken:
        return _no_queue(gang, queue)
    names = tuple(reserve.gang for reserve in reserves)
    terms = (gang.missing, gang.min_member, dict(gang.min_task), gang.queue, gang.started)
    state = (board.gains, names, terms, tuple(gang.pending))
    known = memory.recall(gang.key, state)
    if known is not None:
        known.gang = gang
        return known
    allowance = queue.allowance() if queue is not None and not gang.broken else Allowance()
    shape = _shape(gang, names, board.guarded_labels)
    like = shapes.get(shape) if shape is not None else None
    if like is not None:  # the same was tried in this round, and since then there is only less
        why = next(iter(like.left.values()))
        outcome = Outcome(gang, {}, {wish.key: why for wish in gang.pending}, like.reason, like.message)
        outcome.could, outcome.scarce, outcome.blocked = like.could, like.scarce, like.blocked
    else:
        outcome = attempt(board, gang, reserves, allowance)
    if outcome.waits and not allowance.refused:
        memory.keep(gang.key, state, outcome)
        if shape is not None and outcome.reason == NOT_ENOUGH_RESOURCES:
            shapes.setdefault(shape, outcome)
    if allowance.refused:
        outcome.blocked = []  # it waits for its queue, not for nodes
    if queue is not None:
        for wish in gang.pending:
            if wish.key in outcome.nodes:
                for name, value in wish.requests.items():
                    queue.used[name] = queue.used.get(name, 0) + value
    return outcome


def _shape(gang: Gang, reserves: tuple[str, ...], guarded: Iterable[str]) -> object | None:
    """Gangs of one shape that have nothing yet are alike for the board; None: it has something of its own."""
    first = gang.pending[0] if gang.pending else None
    if first is None or gang.held or gang.started or gang.min_task or first.company or first.particular:
        return None
    for wish in gang.pending:
        own = wish.prefer or wish.avoid or wish.exclude or any(key in wish.labels for key in guarded)
        if own or wish.company or (wish.needs, wish.site, wish.ports) != (first.needs, first.site, first.ports):
            return None
    like = (first.site, first.needs, first.ports, first.namespace)
    return (*like, len(gang.pending), gang.min_member, gang.queue, reserves)


def _no_queue(gang: Gang, queue: Queue | None) -> Outcome:
    reason, what = (NO_QUEUE, "does not exist") if queue is None else (QUEUE_CLOSED, "is closed")
    text = f'queue "{gang.queue}" {what}'
    return Outcome(gang, {}, {wish.key: text for wish in gang.pending}, reason, text, gang.held)


def _in_order(board: Board, gangs: Sequence[Gang], queues: Mapping[str, Queue]) -> Iterator[Gang]:
    yield from sorted((g for g in gangs if _first(g)), key=_fifo)
    lines: dict[str, list[Gang]] = {}
    for gang in sorted((g for g in gangs if not _first(g)), key=_fifo, reverse=True):
        lines.setdefault(gang.queue, []).append(gang)
    while lines:
        name = min(lines, key=lambda q: (-lines[q][-1].priority, _share(board, queues.get(q)), _fifo(lines[q][-1])))
        yield lines[name].pop()
        if not lines[name]:
            del lines[name]


def _first(gang: Gang) -> bool:
    return gang.broken or gang.partial


def _share(board: Board, queue: Queue | None) -> float:
    return queue.share(board) if queue is not None else 0.0


def _fifo(gang: Gang) -> tuple[int, float, str]:
    return (-gang.priority, gang.created, gang.key)
