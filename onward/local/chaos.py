"""`onward chaos node ...`: what can happen to a machine, done to a node on purpose.

stop         the machine dies: agent and pods are killed at once, its cable is cut; nobody is told
start        it comes back; pods that are still bound to it begin again
partition    its cable is cut: pods run on, but neither they nor the agent reach anybody
heal         the cable is mended, and sub-health is over
drain        it is cordoned and its pods are evicted, as kubectl drain does
sub-health   it is reported as not quite well (condition SubHealthy)
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import ApiError, Client
from onward.kube.objects import NODES, PODS, Obj, name_of, namespace_of, stamp
from onward.local import plan as plans
from onward.local import processes
from onward.local.node.sandbox import Sandboxes
from onward.local.plan import NodePlan, Plan
from onward.local.up import is_ready
from onward.local.wiring import Wiring

VERBS = ("stop", "start", "partition", "heal", "drain", "sub-health")
WAIT_S = 60.0
LOOK_S = 0.1


def chaos(state: Path, verb: str, name: str, text: str, wait: bool) -> int:
    plan = plans.load(state)
    node = plan.node(name)
    place = state / "nodes" / name
    place.mkdir(parents=True, exist_ok=True)
    match verb:
        case "stop":
            _stop(state, plan, node)
        case "start":
            (place / "stopped").unlink(missing_ok=True)
            _cable(state, plan, node, up=True)
            _wait(state, name, lambda n: is_ready(n), wait)
        case "partition":
            (place / "cut").touch()
            _cable(state, plan, node, up=False)
        case "heal":
            (place / "cut").unlink(missing_ok=True)
            _cable(state, plan, node, up=True)
            asyncio.run(_with_client(state, lambda c: _sub_health(c, name, "", False)))
            if not (place / "stopped").exists():
                _wait(state, name, lambda n: is_ready(n), wait)
        case "drain":
            asyncio.run(_with_client(state, lambda c: _drain(c, name)))
        case "sub-health":
            asyncio.run(_with_client(state, lambda c: _sub_health(c, name, text or "reported by onward chaos", True)))
    shared = verb == "partition" and plan.network != "pods"
    print(f"{name}: {DONE[verb]}{SHARED if shared else ''}")
    return 0


DONE = {
    "stop": "stopped; its pods are gone and nobody was told",
    "start": "started",
    "partition": "cut off; its pods run on",
    "heal": "healed",
    "drain": "drained; onward chaos node start does not undo this, kubectl uncordon does",
    "sub-health": "reported as sub-healthy; onward chaos node heal ends it",
}
SHARED = ", and still reach each other: pods share this machine's network, so only their node is cut off from the API"


def _stop(state: Path, plan: Plan, node: NodePlan) -> None:
    """All at once, as when the power goes."""
    (state / "nodes" / node.name / "stopped").touch()
    _cable(state, plan, node, up=False)
    pid = processes.running(state, node.name)
    if pid:
        os.kill(pid, signal.SIGKILL)
    sandboxes = Sandboxes(state, plan, node)
    for pod in sandboxes.found():
        if not pod.torn_down:
            sandboxes.sweep(pod)


def _cable(state: Path, plan: Plan, node: NodePlan, up: bool) -> None:
    if plan.network == "pods":
        wiring = Wiring(plans.cluster_id(state), plan)
        wiring.mend(node) if up else wiring.cut(node)


async def _with_client(state: Path, call: Callable[[Client], Awaitable[None]]) -> None:
    async with Client(load_access(state / "kubeconfig")) as client:
        await call(client)


def _wait(state: Path, name: str, good: Callable[[Obj], bool], wait: bool) -> None:
    async def until(client: Client) -> None:
        deadline = time.monotonic() + WAIT_S
        while not good(await client.get(NODES, name)):
            if time.monotonic() > deadline:
                raise OnwardError(f"{name} is not Ready after {WAIT_S:g} s; see {processes.log_file(state, name)}")
            await asyncio.sleep(LOOK_S)

    if wait:
        asyncio.run(_with_client(state, until))


async def _sub_health(client: Client, name: str, text: str, on: bool) -> None:
    node = await client.get(NODES, name)
    conditions = [c for c in (node.get("status") or {}).get("conditions") or [] if c["type"] != "SubHealthy"]
    if on:
        now = stamp(time.time())
        entry = {"type": "SubHealthy", "status": "True", "reason": "Reported", "message": text}
        conditions.append({**entry, "lastHeartbeatTime": now, "lastTransitionTime": now})
    await client.patch(NODES, name, {"status": {"conditions": conditions}}, sub="status")


async def _drain(client: Client, name: str) -> None:
    await client.patch(NODES, name, {"spec": {"unschedulable": True}})
    pods = (await client.list(PODS, fieldSelector=f"spec.nodeName={name}"))["items"]
    for pod in pods:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
        }
        try:
            await client.request("POST", PODS.path(namespace_of(pod), name_of(pod), "eviction"), body)
        except ApiError as e:
            if e.code != 404:
                raise
