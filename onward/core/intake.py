"""What people and monitors say about a fault, checked: every problem of a request is told at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onward.core.membership import Member, Places, index_of
from onward.core.policy import did_you_mean
from onward.core.published import MOST, ONCE, Board, Level, Published, Rules, cleared, posted, remembered
from onward.core.words import read_time
from onward.errors import UsageError

FREQUENCY = "3/24h"  # MindCluster's
LONGEST_TEXT = 200
LONGEST_S = 366 * 86400.0
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# The names that MindCluster gives to the same things, so that its tables of codes can be used as they are.
SAME_AS = {
    "NotHandle": Level.NOT_HANDLE,
    "NotHandleFault": Level.NOT_HANDLE,
    "RestartRequest": Level.RETRY,
    "RestartBusiness": Level.RESTART,
    "SubHealth": Level.SUB_HEALTH,
    "SubHealthFault": Level.SUB_HEALTH,
    "PreSeparate": Level.PRE_SEPARATE,
    "PreSeparateFault": Level.PRE_SEPARATE,
    "PreSeparateNPU": Level.PRE_SEPARATE,
    "Separate": Level.SEPARATE,
    "SeparateFault": Level.SEPARATE,
    "SeparateNPU": Level.SEPARATE,
    "ManuallySeparateNPU": Level.SEPARATE,
    "FreeRestartNPU": Level.SEPARATE,  # a device is reset when nobody uses it: the job has to leave it
    "RestartNPU": Level.SEPARATE,
}


@dataclass(frozen=True)
class Notice:
    """A request, in the words in which it came: whoever decides also checks."""

    op: str = "list"  # report, clear or list
    level: str = ""
    code: str = ""
    text: str = ""
    node: str = ""  # its number, or the agent's host, address or id
    rank: str = ""
    device: str = ""
    lasts: str = ""  # seconds, or 90s, 5m, 2h, 1d
    id: str = ""  # of a fault that stands
    everything: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What a request is checked against."""

    places: Places
    here: tuple[Member, ...]  # connected agents, with a place or without
    local: int  # ranks of a node
    rules: Rules
    at: float  # time of day


@dataclass(frozen=True)
class Answer:
    board: Board
    said: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def carry_out(board: Board, notice: Notice, uid: str, around: Surroundings) -> Answer:
    """The board after `notice`, or everything that is wrong with it."""
    if notice.op == "list" or (uid and uid in board.requests):
        return Answer(board, ("it was carried out already",) if notice.op != "list" else ())
    answer = _clear(board, notice, around) if notice.op == "clear" else _report(board, notice, around)
    return answer if answer.problems else replace(answer, board=remembered(answer.board, uid))


# ---------------------------------------------------------------------------------------------------- report


def _report(board: Board, notice: Notice, around: Surroundings) -> Answer:
    problems: list[str] = []
    level = read_level(notice.level, problems)
    if not notice.code:
        problems.append("no code given: by its code a fault is counted, silenced and cleared")
    elif not _CODE.fullmatch(notice.code):
        problems.append(f"code {notice.code!r}: letters, digits and _ . - only, at most 64, a letter or digit first")
    text = " ".join(notice.text.split())
    if len(text) > LONGEST_TEXT:
        problems.append(f"a text of {len(text)} letters; at most {LONGEST_TEXT}")
    lasts = read_seconds(notice.lasts, problems) if notice.lasts else 0.0
    target = _target(notice, around, problems)
    if level is not None and target is not None:
        _refuse(level, target, board, around, problems)
    if problems or level is None or target is None:
        return Answer(board, problems=tuple(problems))
    until = around.at + lasts if lasts else 0.0
    fault = replace(target, level=level, code=notice.code, text=text, since=around.at, until=until)
    board, fault, follows = posted(board, fault, around.rules, not _others(fault.agent, around))
    return Answer(board, (f"fault {fault.id}: {fault.level}, {fault.where}, {fault.words}", *follows))


def read_silenced(text: str) -> tuple[tuple[str, float], ...]:
    """`CODE,CODE:SECONDS`, as on a command line. UsageError lists every problem."""
    problems: list[str] = []
    found = []
    for word in [w.strip() for w in text.split(",") if w.strip()]:
        code, _, lasts = word.partition(":")
        if not _CODE.fullmatch(code):
            problems.append(f"{code!r} is not a code: letters, digits and _ . - only")
        found.append((code, read_seconds(lasts, problems) if lasts else 0.0))
    if problems:
        raise UsageError(problems)
    return tuple(found)


def read_frequency(text: str) -> tuple[int, float]:
    """`TIMES/WINDOW`, or `off`."""
    times, _, window = ("0", "", "1d") if text == "off" else text.partition("/")
    problems: list[str] = []
    seconds = read_seconds(window, problems)
    if problems or not re.fullmatch(r"[0-9]{1,3}", times):
        raise UsageError(f"not a rule; give TIMES/WINDOW, such as {FREQUENCY}, or off")
    return int(times), seconds


def read_level(text: str, problems: list[str]) -> Level | None:
    ours = {level.value: level for level in Level}
    known = SAME_AS | ours
    if not text:
        problems.append(f"no level given; the levels are {', '.join(Level)}")
    elif text not in known:
        meant = did_you_mean(text, ours) or did_you_mean(text, known)
        problems.append(f"unknown level {text!r}{meant} (the levels are {', '.join(Level)})")
    return known.get(text)


def read_seconds(text: str, problems: list[str]) -> float:
    seconds = read_time(text)
    if seconds is None or not 0 < seconds <= LONGEST_S:
        problems.append(f"{text!r} is not a time; give seconds, or 90s, 5m, 2h, 1d, at most a year")
        return 0.0
    return seconds


def _target(notice: Notice, around: Surroundings, problems: list[str]) -> Published | None:
    """Whom it is about: all but level, code and times of the fault."""
    before = len(problems)
    world = len(around.places) * around.local
    rank = _number(notice.rank, "rank", world, f"the {world} ranks", problems) if notice.rank else -1
    device = _number(notice.device, "device", around.local, "the devices in use", problems) if notice.device else -1
    if not notice.node and not notice.rank:
        what = "a device is one of a node: name the node too" if notice.device else "name a node or a rank"
        problems.append(f"whom is it about? {what}")
    member = _find(notice.node, around, problems) if notice.node else None
    if len(problems) > before:
        return None
    if member is None:
        member = around.places[rank // around.local]
        if member is None:
            problems.append(f"rank {rank}: its node is lost, and its place still vacant")
            return None
    node = index_of(around.places, member.id)
    if rank >= 0 and rank // around.local != node:
        problems.append(f"rank {rank} is not one of node {notice.node}: leave one of the two out")
    if device >= 0:
        if node < 0:
            problems.append(f"{member.name} stands by: it uses no device")
        elif rank >= 0 and rank % around.local != device:
            problems.append(f"rank {rank} uses device {rank % around.local}, not {device}: leave one of the two out")
        else:
            rank = node * around.local + device
    if len(problems) > before:
        return None
    return Published(0, Level.NOT_HANDLE, "", member.id, member.address, member.name, node, rank, device)


def _find(name: str, around: Surroundings, problems: list[str]) -> Member | None:
    placed = {i: m for i, m in enumerate(around.places) if m is not None}
    if name.isdecimal() and len(name) < 8:
        number = int(name)
        if number in placed:
            return placed[number]
        last = len(around.places) - 1
        vacant = number <= last
        problems.append(
            f"node {number} is lost, and its place still vacant" if vacant
            else f"node {number} is not one of the {last + 1} nodes (0 to {last})"
        )
        return None
    known = list({m.id: m for m in (*placed.values(), *around.here)}.values())
    matching = [m for m in known if name in (m.id, m.host, m.address, m.name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(_called(m, around) for m in matching)
        problems.append(f"several nodes are called {name}: {listed}; give the number or the id")
    else:
        names = [n for m in known for n in (m.host, m.address, m.id) if n]
        problems.append(f"no node is called {name!r}{did_you_mean(name, names)}; give its number, host, address or id")
    return None


def _called(m: Member, around: Surroundings) -> str:
    node = index_of(around.places, m.id)
    return f"{node} ({m.id})" if node >= 0 else f"{m.id} (stands by)"


def _number(text: str, what: str, limit: int, which: str, problems: list[str]) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        problems.append(f"{what} {text!r} is not a whole number")
    elif int(text) >= limit:
        problems.append(f"{what} {text} is not one of {which} (0 to {limit - 1})")
    else:
        return int(text)
    return -1


def _refuse(level: Level, target: Published, board: Board, around: Surroundings, problems: list[str]) -> None:
    """What makes no sense in this job."""
    if len([f for f in board.faults if not f.done]) >= MOST:
        problems.append(f"{MOST} faults stand already; clear some first (onward fault list)")
    if level in ONCE and target.node < 0:
        problems.append(f"level {level}: {target.name} stands by, it has no rank to do that to")
    if level is Level.RESTART and target.rank < 0 and len(around.places) == 1:
        problems.append("level restart: all ranks are on this node, nobody would be left with the state; name a rank")
    if level is Level.SEPARATE and target.node >= 0 and not _others(target.agent, around):
        problems.append("level separate: this is the only node, so the job would end; stop it, or say pre-separate")


def _others(agent: str, around: Surroundings) -> list[str]:
    return [m.id for m in (*around.places, *around.here) if m is not None and m.id != agent]


# ---------------------------------------------------------------------------------------------------- clear


def _clear(board: Board, notice: Notice, around: Surroundings) -> Answer:
    problems: list[str] = []
    if not (notice.id or notice.code or notice.node or notice.rank or notice.everything):
        problems.append("which faults? give their id, code, node or rank, or say all")
    chosen = list(board.faults)
    if notice.id:
        chosen = [f for f in chosen if str(f.id) == notice.id]
        if not chosen:
            problems.append(f"no fault has the id {notice.id!r}{_standing(board)}")
    if notice.code:
        known = [f.code for f in board.faults]
        if notice.code not in known:
            meant = did_you_mean(notice.code, known)
            problems.append(f"no fault has the code {notice.code!r}{meant}{_standing(board)}")
        chosen = [f for f in chosen if f.code == notice.code]
    if notice.rank:
        rank = _number(notice.rank, "rank", len(around.places) * around.local, "the ranks", problems)
        chosen = [f for f in chosen if f.rank == rank]
    if notice.node:
        member = _find_faulty(notice.node, board, around, problems)
        chosen = [f for f in chosen if f.agent == member]
    if not problems and not chosen:
        problems.append(f"nothing to clear{_standing(board)}")
    if problems:
        return Answer(board, problems=tuple(problems))
    said = tuple(f"cleared {f.id}: {f.level}, {f.where}, {f.words}" for f in chosen)
    return Answer(cleared(board, [f.id for f in chosen]), said)


def _find_faulty(name: str, board: Board, around: Surroundings, problems: list[str]) -> str:
    """The agent called `name`. One that had this place when its fault was reported comes before who holds it now."""
    had = {f.agent for f in board.faults if str(f.node) == name or f.agent == name}
    if len(had) == 1:
        return had.pop()
    if had:
        problems.append(f"several nodes that were node {name} have faults: give the id of the fault")
        return ""
    member = _find(name, around, problems)
    return member.id if member is not None else ""


def _standing(board: Board) -> str:
    ids: Sequence[str] = [f"{f.id} ({f.code})" for f in board.faults]
    return f"; these stand: {', '.join(ids)}" if ids else "; none stands"
