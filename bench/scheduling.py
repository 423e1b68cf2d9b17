"""How fast the gang scheduler decides, and how that grows: `onward.core` alone, without an API server.

    .venv/bin/python bench/scheduling.py                  # a minute; prints a table, writes results/scheduling.json
    .venv/bin/python bench/scheduling.py --quick

Seconds are CPU seconds of this process, so that others on the machine count little; the median of three runs. A
decision is a pod that was placed or refused. Growth is the time of a size by that of the smallest, beside how much
larger it is: equal numbers are linear growth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from onward.core.board import Board  # noqa: E402
from onward.core.gang import Gang, Outcome  # noqa: E402
from onward.core.placement import HOSTNAME, Room, Wish  # noqa: E402
from onward.core.turns import Memory, Queue, take_turns  # noqa: E402

GI = 2**30
SIZES = ((64, 512, 8), (64, 512, 8), (96, 1024, 8), (32, 256, 4), (16, 64, 0))  # cpus, GiB, accelerators of a node
SHAPES = ((4, 16, 0), (8, 64, 1), (16, 128, 2), (32, 256, 4), (60, 480, 8))  # and of a pod
RUNS = 3


def alike(count: int) -> list[Room]:
    return [_room(i, *SIZES[0]) for i in range(count)]


def mixed(count: int) -> list[Room]:
    """Five sizes; one in twenty is cordoned, one in twenty tainted."""
    rooms = [_room(i, *SIZES[i % len(SIZES)]) for i in range(count)]
    for room in rooms[7::20]:
        room.unschedulable = True
    for room in rooms[11::20]:
        room.taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    return rooms


def _room(number: int, cpus: int, memory: int, devices: int) -> Room:
    name = f"node-{number}"
    labels = {HOSTNAME: name, "zone": str(number % 8), "machine": f"id-{number}"}
    have = {"cpu": cpus * 1000, "memory": memory * GI, "pods": 110, "nvidia.com/gpu": devices}
    return Room(name, labels, have)


def gang(
    name: str, count: int, shape: tuple[int, int, int], created: int, apart: bool = False, host: bool = False
) -> Gang:
    term = {"labelSelector": {"matchLabels": {"job-name": name}}, "topologyKey": HOSTNAME}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}} if apart else {}
    ports = frozenset({("TCP", 2222), ("TCP", 9601)}) if host else frozenset()
    cpus, memory, devices = shape
    needs = {"cpu": cpus * 1000, "memory": memory * GI, "nvidia.com/gpu": devices}
    pods = [
        Wish(f"default/{name}-{i}", "default", {"job-name": name, "index": str(i)}, needs, affinity=rule, ports=ports)
        for i in range(count)
    ]
    return Gang(f"default/{name}", pods, min_member=count, created=float(created), queue="default")


def decide(board: Board, gangs: list[Gang], memory: Memory | None = None) -> list[Outcome]:
    return take_turns(board, gangs, {"default": Queue("default")}, 0.0, memory=memory)


def one_gang(nodes: int) -> dict[str, Any]:
    """Two pods for each node, all of one gang."""
    board, gangs = Board(alike(nodes)), [gang("big", 2 * nodes, (32, 256, 4), 0)]
    return _timed(lambda: decide(board, gangs))


def many_gangs(nodes: int, apart: bool = False, sizes: int = 0, host: bool = False) -> dict[str, Any]:
    """As many gangs of eight as there are nodes: far more than fits. `sizes`: so many different pods, not five.

    `host`: they have the network of their host, where each port is there once.
    """
    rng = random.Random(nodes)
    shapes = list(SHAPES)
    if sizes:
        shapes = [(rng.randint(1, 60), rng.randint(8, 480), rng.randint(0, 8)) for _ in range(sizes)]
    board = Board(mixed(nodes))
    gangs = [gang(f"job-{i}", 8, rng.choice(shapes), i, apart, host) for i in range(nodes)]
    return _timed(lambda: decide(board, gangs))


def one_change(nodes: int) -> dict[str, Any]:
    """A cluster that is full, gangs that wait, and one gang more comes: what a pass costs."""
    rng = random.Random(nodes)
    board, memory = Board(mixed(nodes)), Memory()
    gangs = [gang(f"job-{i}", 8, rng.choice(SHAPES), i) for i in range(nodes)]
    waiting = [outcome.gang for outcome in decide(board, gangs, memory) if outcome.waits]
    return _timed(lambda: decide(board, [*waiting, gang("new", 8, SHAPES[-1], nodes)], memory))


def _timed(work: Callable[[], list[Outcome]]) -> dict[str, Any]:
    begun = time.process_time()
    outcomes = work()
    took = time.process_time() - begun
    pods = sum(len(outcome.gang.pending) for outcome in outcomes)
    placed = sum(len(outcome.nodes) for outcome in outcomes)
    started = sum(not outcome.waits for outcome in outcomes)
    return {"seconds": took, "pods": pods, "placed": placed, "gangs": len(outcomes), "started": started}


Section = tuple[str, Callable[[int], dict[str, Any]], tuple[int, ...]]
SECTIONS: tuple[Section, ...] = (
    ("one gang, two pods for each node", one_gang, (625, 1250, 2500, 5000)),
    ("as many gangs of 8 as nodes, mixed", many_gangs, (250, 500, 1000, 2000)),
    ("the same, pods of a gang on different hosts", lambda n: many_gangs(n, apart=True), (250, 500, 1000, 2000)),
    ("the same, every gang with pods of its own size", lambda n: many_gangs(n, sizes=n), (250, 500, 1000, 2000)),
    ("the same, with the network of the host", lambda n: many_gangs(n, host=True), (250, 500, 1000, 2000)),
    ("one gang more, when the rest waits", one_change, (250, 500, 1000, 2000)),
)


def measure(work: Callable[[int], dict[str, Any]], size: int, runs: int) -> dict[str, Any]:
    found = sorted((work(size) for _ in range(runs)), key=lambda each: each["seconds"])
    return {"nodes": size, **found[len(found) // 2]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small sizes, once")
    quick = parser.parse_args().quick
    results: dict[str, list[dict[str, Any]]] = {}
    print("| what | nodes | pods | started / gangs | seconds | decisions per s | growth (of the size) |")
    print("|---|---|---|---|---|---|---|")
    for what, work, sizes in SECTIONS:
        sizes = tuple(size // 10 for size in sizes[:2]) if quick else sizes
        rows = results[what] = [measure(work, size, 1 if quick else RUNS) for size in sizes]
        for row in rows:
            growth = f"{row['seconds'] / rows[0]['seconds']:.1f} ({row['nodes'] / rows[0]['nodes']:.0f})"
            print(
                f"| {what} | {row['nodes']} | {row['pods']} | {row['started']} / {row['gangs']} | {row['seconds']:.3f} "
                f"| {row['pods'] / row['seconds']:.0f} | {growth} |"
            )
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "scheduling.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
