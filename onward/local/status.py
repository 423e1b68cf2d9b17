"""`onward status` of a cluster: its processes, nodes and pods in a few lines."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import Client
from onward.kube.objects import NODES, PODS, Obj, name_of
from onward.local import plan as plans
from onward.local import processes
from onward.local.up import is_ready


def status(state: Path, output: str) -> int:
    if not (state / plans.FILE).exists():
        print(f"No cluster in {state}; onward up starts one.")
        return 1
    plan = plans.load(state)
    names = ["supervisor", *(part.name for part in processes.parts(plan))]
    pids = {name: processes.running(state, name) for name in names}
    found: Obj = {
        "state": str(state),
        "kubeconfig": str(state / "kubeconfig"),
        "processes": pids,
        "nodes": {},
        "pods": {},
    }
    try:
        nodes, pods = asyncio.run(_ask(state))
        found["nodes"] = {name_of(n): _words(n, state) for n in nodes}
        found["pods"] = dict(Counter((p.get("status") or {}).get("phase", "Unknown") for p in pods))
        found["api"] = "answers"
    except OnwardError as e:
        found["api"] = f"does not answer: {e}"
    if output == "json":
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    healthy = found["api"] == "answers" and pids["supervisor"]
    return 0 if healthy else 1


async def _ask(state: Path) -> tuple[list[Obj], list[Obj]]:
    async with Client(load_access(state / "kubeconfig")) as client:
        return (await client.list(NODES))["items"], (await client.list(PODS))["items"]


def _words(node: Obj, state: Path) -> str:
    words = ["Ready" if is_ready(node) else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("cordoned")
    for file, word in (("stopped", "stopped by onward chaos"), ("cut", "cut off by onward chaos")):
        if (state / "nodes" / name_of(node) / file).exists():
            words.append(word)
    conditions = (node.get("status") or {}).get("conditions") or []
    if any(c["type"] == "SubHealthy" and c["status"] == "True" for c in conditions):
        words.append("sub-healthy")
    return ", ".join(words)


def _show(found: Obj) -> None:
    print(f"cluster   {found['kubeconfig']}")
    print(f"api       {found['api']}")
    for name, words in found["nodes"].items():
        print(f"{name:<9} {words}")
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(found["pods"].items()))
    print(f"pods      {pods or 'none'}")
    dead = [name for name, pid in found["processes"].items() if not pid]
    if dead:
        print(f"not running: {', '.join(dead)} (logs in {found['state']}/logs)")
