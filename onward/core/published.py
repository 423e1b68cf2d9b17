"""Faults that somebody else has found: published for a node, a rank or a device, with a level that says what follows.

A published fault is about an *agent*, whichever place it holds: it stays with the machine when the place goes to
another. Four levels last until they are cleared or expire; two are carried out once (`retry`, `restart`). Like all
that the manager wants they are part of the job's record, so they outlive it; the times in it are times of day, because
the next manager may have another clock.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from onward.core.membership import Member, Places, index_of

MOST = 100  # that may stand at once: the record travels with every order
EVENT_S = 3600.0  # what is carried out once is not waited with, nor remembered, for longer
TOGETHER_S = 30.0  # the same fault on two nodes within so long is the job's doing, not a node's
KEPT_REQUESTS = 32
KEPT_OCCURRENCES = 500


class Level(str, Enum):
    """What follows from a fault, from nothing at all to the loss of the node."""

    NOT_HANDLE = "not-handle"  # shown, and nothing else
    SUB_HEALTH = "sub-health"  # the node is worse than it should be: what is done about that is a policy
    RETRY = "retry"  # once: pause, and redo the step in place
    RESTART = "restart"  # once: the process of the rank is replaced in place
    PRE_SEPARATE = "pre-separate"  # the node goes on, but gets no other place
    SEPARATE = "separate"  # the node is given up at once, and gets no place

    __str__ = str.__str__


ONCE = (Level.RETRY, Level.RESTART)
BARRING = (Level.PRE_SEPARATE, Level.SEPARATE)


@dataclass(frozen=True)
class Published:
    """One fault, as it stands."""

    id: int
    level: Level
    code: str
    agent: str
    address: str = ""
    name: str = ""  # of the agent, for people
    node: int = -1  # the place that the agent held then, -1: it stood by
    rank: int = -1  # -1: the whole node
    device: int = -1
    text: str = ""
    since: float = 0.0  # time of day, as the two below
    until: float = 0.0  # 0: until it is cleared
    done: bool = False  # of a level that is carried out once: it has been

    @property
    def where(self) -> str:
        home = f"node {self.node}" if self.node >= 0 else self.name
        if self.device >= 0:
            return f"device {self.device} of {home} (rank {self.rank})"
        return f"rank {self.rank} on {home}" if self.rank >= 0 else f"{home}, {self.name}" if self.node >= 0 else home

    @property
    def words(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


@dataclass(frozen=True)
class Occurrence:
    """A fault was reported: counted by the frequency rule."""

    code: str
    agent: str
    at: float


@dataclass(frozen=True)
class Board:
    """All that is published for a job, and what is counted."""

    faults: tuple[Published, ...] = ()
    seen: tuple[Occurrence, ...] = ()
    requests: tuple[str, ...] = ()  # carried out lately: a request that is repeated is not carried out twice
    last_id: int = 0
    version: int = 0  # grows with every change


@dataclass(frozen=True)
class Rules:
    """How a job takes published faults."""

    silenced: tuple[tuple[str, float], ...] = ()  # (code, seconds): not handled for so long; 0: never
    times: int = 3  # so often within the window isolates a node; 0: no such rule
    window_s: float = 86400.0

    @property
    def release_s(self) -> float:
        """What the rule has isolated comes back by itself after so long."""
        return 2 * self.window_s


def level_now(fault: Published, rules: Rules, at: float) -> Level:
    """The level that counts: a silenced fault is only shown."""
    for code, seconds in rules.silenced:
        if code == fault.code and (not seconds or at < fault.since + seconds):
            return Level.NOT_HANDLE
    return fault.level


# ---------------------------------------------------------------------------------------------------- changes


def posted(board: Board, fault: Published, rules: Rules, alone: bool) -> tuple[Board, Published, tuple[str, ...]]:
    """The board with one more fault, the fault as it stands there, and what follows, in words.

    A fault that stands already is brought up to date: it lasts, it has not happened again. `alone`: no other node could
    take the place of this one.
    """
    same = [f for f in board.faults if _same(f, fault) and not f.done]
    if same:
        fault = replace(fault, id=same[0].id, since=same[0].since)
        faults = tuple(fault if f.id == fault.id else f for f in board.faults)
        board = replace(board, faults=faults, version=board.version + 1)
        return board, fault, ("it stood already; brought up to date",)
    if fault.level in ONCE and not fault.until:
        fault = replace(fault, until=fault.since + EVENT_S)
    fault = replace(fault, id=board.last_id + 1)
    kept = tuple(f for f in board.faults if not _same(f, fault))
    board = replace(board, faults=(*kept, fault), last_id=fault.id, version=board.version + 1)
    return _counted(board, fault, rules, alone)


def _same(a: Published, b: Published) -> bool:
    """About the same thing: a rank that has moved to another agent is not the same."""
    return (a.code, a.level, a.agent, a.rank, a.device) == (b.code, b.level, b.agent, b.rank, b.device)


def _counted(board: Board, fault: Published, rules: Rules, alone: bool) -> tuple[Board, Published, tuple[str, ...]]:
    """The same code on the same node too often isolates the node. What is silenced or only shown does not count."""
    now = fault.since
    silenced = fault.code in [code for code, _ in rules.silenced]
    if not rules.times or silenced or fault.level in (Level.NOT_HANDLE, Level.SEPARATE):
        return board, fault, ()
    seen = tuple(o for o in board.seen if now - o.at < rules.window_s)
    seen = (*seen, Occurrence(fault.code, fault.agent, now))[-KEPT_OCCURRENCES:]
    board = replace(board, seen=seen)
    count = frequency(seen, fault.code, fault.agent)
    if count < rules.times or alone:
        return board, fault, ()
    why = f"{fault.code} came {count} times within {in_words(rules.window_s)}"
    isolated = replace(
        fault,
        id=board.last_id + 1,
        level=Level.SEPARATE,
        rank=-1,
        device=-1,
        text=why,
        until=now + rules.release_s,
    )
    handled = tuple(replace(f, done=True) if f.id == fault.id and f.level in ONCE else f for f in board.faults)
    left = tuple(o for o in seen if (o.code, o.agent) != (fault.code, fault.agent))
    board = replace(board, faults=(*handled, isolated), seen=left, last_id=isolated.id)
    return board, isolated, (f"{isolated.where} is isolated: {why}",)


def frequency(seen: Sequence[Occurrence], code: str, agent: str) -> int:
    """How often `code` came on `agent`, not counting what came elsewhere at the same time."""
    elsewhere = [o.at for o in seen if o.code == code and o.agent != agent]
    here = [o.at for o in seen if o.code == code and o.agent == agent]
    return sum(1 for at in here if all(abs(at - other) > TOGETHER_S for other in elsewhere))


def cleared(board: Board, ids: Sequence[int]) -> Board:
    left = tuple(f for f in board.faults if f.id not in ids)
    return replace(board, faults=left, version=board.version + 1) if left != board.faults else board


def expired(board: Board, places: Places, at: float) -> tuple[Board, tuple[Published, ...]]:
    """Without what is over, and what that is: its time is up, or it was to be done to ranks that have moved away."""

    def over(f: Published) -> bool:
        return (f.until > 0 and at >= f.until) or (f.level in ONCE and not f.done and index_of(places, f.agent) < 0)

    gone = tuple(f for f in board.faults if over(f))
    return cleared(board, [f.id for f in gone]), gone


def remembered(board: Board, request: str) -> Board:
    return replace(board, requests=(*board.requests, request)[-KEPT_REQUESTS:], version=board.version + 1)


def carried_out(board: Board, ids: Sequence[int]) -> Board:
    faults = tuple(replace(f, done=True) if f.id in ids else f for f in board.faults)
    return replace(board, faults=faults, version=board.version + 1) if faults != board.faults else board


# ---------------------------------------------------------------------------------------------------- what follows


def why_separated(board: Board, agent: str, rules: Rules, at: float) -> str:
    """Why `agent` must give up its place; empty when it need not."""
    for f in board.faults:
        if f.agent == agent and level_now(f, rules, at) is Level.SEPARATE:
            return f"separated by fault {f.words}"
    return ""


def why_barred(board: Board, member: Member, rules: Rules, at: float) -> str:
    """Why `member` gets no place; empty when it may. An agent that was started anew on the machine is no better."""
    for f in board.faults:
        here = f.agent == member.id or (f.address == member.address and not _is_loopback(f.address))
        if here and level_now(f, rules, at) in BARRING:
            return f"{f.level} by fault {f.words}"
    return ""


def _is_loopback(address: str) -> bool:
    """Agents there may stand for different machines, as they do in tests."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def due(board: Board, places: Places, rules: Rules, at: float) -> tuple[Published, ...]:
    """What is to be carried out once and has not been."""
    waiting = [f for f in board.faults if f.level in ONCE and not f.done and index_of(places, f.agent) >= 0]
    return tuple(f for f in waiting if level_now(f, rules, at) is f.level)


def sub_healthy(board: Board, places: Places, rules: Rules, at: float) -> dict[int, str]:
    """Nodes that are worse than they should be, and why."""
    found: dict[int, str] = {}
    for f in board.faults:
        node = index_of(places, f.agent)
        if node >= 0 and level_now(f, rules, at) is Level.SUB_HEALTH:
            found.setdefault(node, f"fault {f.words} on {f.where}")
    return found


def in_words(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
