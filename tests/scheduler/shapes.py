"""Nodes, pods and gangs for tests of decisions."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from onward.core.board import Board
from onward.core.gang import Gang, Outcome
from onward.core.placement import Room, Wish
from onward.core.turns import Queue, take_turns

GI = 2**30
HOSTNAME = "kubernetes.io/hostname"


def room(name: str, cpu: int = 8, gpus: int = 0, **more: Any) -> Room:
    allocatable = {"cpu": cpu * 1000, "memory": 16 * GI, "pods": 110, "nvidia.com/gpu": gpus}
    labels = {HOSTNAME: name, **more.pop("labels", {})}
    return Room(name, labels, allocatable, **more)


def wish(name: str = "p", cpu: int = 1, **more: Any) -> Wish:
    requests = {"cpu": cpu * 1000, **more.pop("requests", {})}
    return Wish(f"default/{name}", "default", more.pop("labels", {}), requests, **more)


def gang(name: str, count: int, cpu: int = 1, **more: Any) -> Gang:
    """`count` equal pods, all of them needed unless it is said otherwise."""
    pod = more.pop("pod", {})
    pods = [wish(f"{name}-{i}", cpu, **copy.deepcopy(pod)) for i in range(count)]
    return Gang(f"default/{name}", pods, **{"min_member": count, "queue": "default", **more})


def queues(*given: Queue) -> dict[str, Queue]:
    return {queue.name: queue for queue in (Queue("default"), *given)}


def turns(board: Board, gangs: Iterable[Gang], *given: Queue, now: float = 0.0, **more: Any) -> dict[str, Outcome]:
    outcomes = take_turns(board, gangs, queues(*given), now, **more)
    return {outcome.gang.key.partition("/")[2]: outcome for outcome in outcomes}


def affinity(kind: str, key: str = HOSTNAME, **labels: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
