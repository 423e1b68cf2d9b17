"""`onward down`: end the cluster and everything it started, also when parts of it are broken or gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path

from onward.errors import OnwardError, UsageError
from onward.kube.access import AccessError, load_access
from onward.local import kubeconfig, processes, turns, wiring
from onward.local import plan as plans
from onward.local.node.mountpoints import MountPoints
from onward.local.node.sandbox import Local, Sandboxes
from onward.local.shim import cgroups

STOP_MARGIN_S = 2.0
TURN_S = 90.0
"""Longer than an `onward up` waits for a cluster that does not get ready."""


def down(state: Path, keep: bool, grace_s: float) -> int:
    if not (state / plans.FILE).exists():
        print(f"No cluster in {state}: nothing to take down.")
        return 0
    _mark(state)
    with turns.take(state, TURN_S) as there:
        if there:  # else somebody took it down before us, or gave up starting it
            take_down(state, keep, grace_s)
    print("The cluster is down." + (f" Its objects are kept in {state}; onward up goes on with them." if keep else ""))
    return 0


def _mark(state: Path) -> None:
    """From now on nothing is started again; one who is still starting it gives up."""
    with contextlib.suppress(FileNotFoundError):  # gone in this moment
        (state / "run").mkdir(exist_ok=True)
        (state / "run" / "ending").touch()


def take_down(state: Path, keep: bool, grace_s: float) -> None:
    plan = _plan(state)
    _mark(state)
    names = [part.name for part in processes.parts(plan)]
    nodes = [node.name for node in plan.nodes]
    processes.end([processes.running(state, name) for name in ("guard", "supervisor")])
    processes.end([processes.running(state, name) for name in nodes])
    for node in plan.nodes:
        _end_pods(Sandboxes(state, plan, node), grace_s)
    processes.end([processes.running(state, name) for name in names])
    while left := processes.strays(state):
        processes.end(left)
    for node in plan.nodes:  # what a node did in its last moment
        _end_pods(Sandboxes(state, plan, node), 0.0)
    if plan.network == "pods":
        wiring.Wiring(plans.cluster_id(state), plan).remove_all()
    if os.geteuid() == 0:
        group = cgroups.find(plans.cluster_id(state))
        group.kill()
        group.remove()
        MountPoints(state).release_all()
    with contextlib.suppress(AccessError, UsageError):
        kubeconfig.unmerge(load_access(state / "kubeconfig").server)
    if not keep:
        shutil.rmtree(state)


def _plan(state: Path) -> plans.Plan:
    """As it was written; where that cannot be read any more, as far as directories tell it."""
    try:
        return plans.load(state)
    except OnwardError as e:
        print(f"{e}")
        names = sorted(place.name for place in (state / "nodes").glob("*"))
        nodes = [plans.NodePlan(name, number, {}) for number, name in enumerate(names, 1)]
        return plans.Plan(nodes=nodes, network="pods" if os.geteuid() == 0 and shutil.which("ip") else "loopback")


def _end_pods(sandboxes: Sandboxes, grace_s: float) -> None:
    pods = [pod for pod in sandboxes.found() if not pod.torn_down]
    if grace_s > 0:
        asyncio.run(_ask(sandboxes, pods, grace_s))
    for pod in pods:
        sandboxes.tear_down(pod)
        sandboxes.forget(pod)  # when the cluster comes up again, what ran begins anew


async def _ask(sandboxes: Sandboxes, pods: list[Local], grace_s: float) -> None:
    async def one(pod: Local) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            reader, writer = await sandboxes.connect(pod)
            writer.write(json.dumps({"op": "stop", "grace_s": grace_s}).encode() + b"\n")
            await asyncio.wait_for(reader.read(), grace_s + STOP_MARGIN_S)  # until the shim has gone
            writer.close()

    await asyncio.gather(*(one(pod) for pod in pods))
