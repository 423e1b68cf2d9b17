"""Faults on purpose: what `--chaos` and `onward chaos` understand.

    kind=kill,rank=2,step=50             rank 2 is killed when it begins step 50
    kind=kill,rank=1+3,step=50           two ranks at once (the same as kind=double)
    kind=exception,rank=1,step=20,at=optimizer
    kind=kill,rank=3,when=recovery       while a recovery is under way
    kind=slow,rank=1,delay=0.2,steps=30  each of 30 steps takes so much longer; or for seconds=S; or for good
    kind=kill-manager,step=30            a process of onward's own
    kind=kill-agent,node=1,step=30       the same on another node

Faults of ranks are carried out inside the rank, at the exact moment asked for; faults of onward's own processes by the
launcher. A YAML file holds a list of the same fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward.core.policy import did_you_mean
from onward.errors import UsageError
from onward.wire.messages import Injection

RANK_KINDS = (
    "kill",
    "segv",
    "abort",
    "exit-code",
    "exception",
    "bug",
    "stop",
    "sleep-hang",
    "gil-hang",
    "endless-loop",
    "skip-collective",
    "drop-connections",
    "slow",
    "oom",
)
OWN_KINDS = ("kill-manager", "kill-agent", "kill-warm-parent", "kill-spares")
KINDS = (*RANK_KINDS, "double", "during-recovery", *OWN_KINDS)
MOMENTS = ("begin", "forward", "collective", "optimizer", "end")
_FIELDS = ("kind", "rank", "node", "step", "at", "seconds", "steps", "delay", "code", "text", "when", "appends", "lose")


def parse_chaos(specs: Sequence[str], world_size: int) -> tuple[Injection, ...]:
    """All injections of all specs; UsageError lists every problem."""
    problems: list[str] = []
    items: list[dict[str, Any]] = []
    for spec in specs:
        if not spec.strip():
            problems.append("--chaos is empty; give a YAML file or kind=...,rank=...,step=...")
        elif "=" in spec:
            items.append(_pairs(spec, problems))
        else:
            items.extend(_from_file(Path(spec), problems))
    found: list[Injection] = []
    for item in items:
        found.extend(_injections(item, len(found) + 1, world_size, problems))
    if problems:
        raise UsageError(problems)
    return tuple(found)


def _pairs(spec: str, problems: list[str]) -> dict[str, Any]:
    item: dict[str, Any] = {"": spec}
    for part in spec.split(","):
        key, sep, value = part.partition("=")
        if not sep:
            problems.append(f"--chaos {spec!r}: {part!r} is not of the form key=value")
        item[key.strip()] = value.strip()
    return item


def _from_file(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as e:
        problems.append(f"--chaos {path}: {e.strerror}; give a YAML file or kind=...,rank=...,step=...")
        return []
    except yaml.YAMLError as e:
        problems.append(f"--chaos {path}: not YAML: {str(e).splitlines()[0]}")
        return []
    if not isinstance(data, list) or not all(isinstance(i, dict) for i in data):
        problems.append(f"--chaos {path}: must be a list of mappings with kind, rank and step")
        return []
    return [{"": f"{path}[{n}]", **item} for n, item in enumerate(data)]


def _injections(item: dict[str, Any], first_id: int, world_size: int, problems: list[str]) -> list[Injection]:
    name = item.pop("")
    where = f"--chaos {name!r}"
    before = len(problems)
    for key in [k for k in item if k not in _FIELDS]:
        problems.append(f"{where}: unknown field {key!r}{did_you_mean(str(key), _FIELDS)}")
    kind = str(item.get("kind", ""))
    if kind not in KINDS:
        what = f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}" if kind else "no kind is given"
        problems.append(f"{where}: {what} (the kinds are {', '.join(KINDS)})")
    moment = str(item.get("at", "begin"))
    if moment not in MOMENTS:
        problems.append(f"{where}: at={moment!r} must be one of {', '.join(MOMENTS)}")
    when = str(item.get("when", "recovery" if kind == "during-recovery" else ""))
    if when not in ("", "recovery"):
        problems.append(f"{where}: when={when!r} must be left out or be 'recovery'")
    ranks = _ranks(item, kind, world_size, where, problems)
    node = _number(item, "node", 0, where, problems)
    if "node" in item and kind not in OWN_KINDS:
        problems.append(f"{where}: node= is for {', '.join(OWN_KINDS)}; ranks are named by rank=")
    step = _number(item, "step", -1, where, problems)
    code = _number(item, "code", 0, where, problems)
    steps = _number(item, "steps", 0, where, problems)
    seconds, delay = (_seconds(item, key, where, problems) for key in ("seconds", "delay"))
    for key in [k for k in ("steps", "delay") if k in item and kind != "slow"]:
        problems.append(f"{where}: {key}= is for kind=slow")
    appends, lose = _number(item, "appends", 0, where, problems), str(item.get("lose", ""))
    for key in [k for k in ("appends", "lose") if k in item and kind != "kill-manager"]:
        problems.append(f"{where}: {key}= is for kind=kill-manager")
    if lose not in ("", "journal"):
        problems.append(f"{where}: lose={lose!r} must be left out or be 'journal'")
    if lose and not appends:
        problems.append(f"{where}: lose= needs appends=, the number of records after which the manager dies")
    if len(problems) > before:
        return []
    kind = {"double": "kill", "during-recovery": "kill"}.get(kind, kind)
    return [
        Injection(
            id=first_id + i,
            kind=kind,
            rank=rank,
            node=node,
            step=step,
            at="recovery" if when == "recovery" else moment,
            seconds=seconds,
            steps=steps,
            delay=delay,
            appends=appends,
            lose=lose,
            code=code,
            text=str(item.get("text", "")),
        )
        for i, rank in enumerate(ranks)
    ]


def _ranks(item: dict[str, Any], kind: str, world_size: int, where: str, problems: list[str]) -> list[int]:
    if kind in OWN_KINDS:
        return [-1]
    given = str(item.get("rank", ""))
    if not given:
        problems.append(f"{where}: which rank? add rank=N, or several joined with +")
        return []
    try:
        ranks = [int(r) for r in given.split("+")]
    except ValueError:
        problems.append(f"{where}: rank={given!r} is no rank; give its number, or several joined with +")
        return []
    for r in ranks:
        if not 0 <= r < world_size:
            last = world_size - 1
            which = f"one of the {world_size} ranks (0 to {last})" if last else "rank 0, the only one"
            problems.append(f"{where}: rank {r} is not {which}")
    if kind == "double" and len(ranks) < 2:
        problems.append(f"{where}: double needs two ranks, for example rank=1+2")
    return ranks


def _seconds(item: dict[str, Any], key: str, where: str, problems: list[str]) -> float:
    try:
        value = float(item.get(key, 0.0))
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < math.inf:
        problems.append(f"{where}: {key}={item[key]!r} is not a number of seconds")
    return value


def _number(item: dict[str, Any], key: str, default: int, where: str, problems: list[str]) -> int:
    try:
        value = int(item.get(key, default))
    except (TypeError, ValueError):
        value = -1
    if key in item and value < 0:
        problems.append(f"{where}: {key}={item[key]!r} is not a whole number from 0 on")
    return value
