"""`onward up`: start a cluster, wait until it is ready, say how to use it."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from onward.api.crds import crds
from onward.errors import OnwardError, UsageError
from onward.kube.access import load_access
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.definitions import CRDS
from onward.kube.objects import NODES, SERVICES, Obj, key_of, name_of
from onward.local import kubeconfig, processes, turns, wiring
from onward.local import plan as plans
from onward.local.controllers.system import services
from onward.local.plan import NodePlan, Plan

READY_S = 60.0
LOOK_S = 0.1
NODES_DEFAULT, CPUS, MEMORY = 4, "8", "16Gi"
LAST_LINES = 8


def options(parser: argparse.ArgumentParser) -> None:
    say = parser.add_argument
    say("--nodes", type=int, metavar="N", help="how many nodes (default 4)")
    say("--cpus", metavar="N", help="cpus of each node (default 8)")
    say("--memory", metavar="SIZE", help="memory of each node (default 16Gi)")
    say("--gpus", type=int, metavar="N", help="nvidia.com/gpu of each node (default 0)")
    say("--node-file", type=Path, metavar="FILE", help="nodes as a YAML file lists them: labels, taints, resources")
    say("--nfs", action="append", default=[], metavar="SERVER:/PATH=DIR", help="what an nfs volume is on this machine")
    say("--port", type=int, metavar="PORT", help="port of the API on 127.0.0.1 (default: a free one)")
    say("--network", choices=["auto", "pods", "loopback"], default="auto", help="pods: an address for each pod (root)")
    say("--merge-kubeconfig", action="store_true", help="add the cluster to ~/.kube/config and make it the current one")
    say("--crash-backoff", type=float, metavar="S", help="first wait of a crashing container (default 10)")
    say("--node-lease", type=float, metavar="S", help="a node is NotReady after four times this (default 10)")
    say("--evict-after", type=float, metavar="S", help="pods of a lost node are deleted after this (default 300)")


def up(asked: argparse.Namespace, state: Path) -> int:
    plan = None
    if not (state / plans.FILE).exists():  # mistakes are told before anything is made
        plan = _plan(asked)
        _check_port(plan.port)
    with turns.take(state, READY_S, make=True):
        if (state / plans.FILE).exists():
            return _again(asked, state)
        return _new(asked, plan or _plan(asked), state)


def _new(asked: argparse.Namespace, plan: Plan, state: Path) -> int:
    if any(entry.name != plans.UNFINISHED for entry in state.iterdir()):
        raise UsageError(f"{state} is not empty and holds no cluster; choose another with --state")
    try:
        state.chmod(0o700)
        plans.save(plan, state)
    except OSError as e:
        raise UsageError(f"cannot use {state}: {e.strerror}; choose another with --state") from e
    try:
        plan = _connected(plan, state)
        _start(plan, state)
    except BaseException:
        from onward.local.down import take_down

        take_down(state, keep=False, grace_s=0.0)
        raise
    _tell(plan, state, asked.merge_kubeconfig)
    return 0


def _connected(plan: Plan, state: Path) -> Plan:
    """Of clusters that begin at once and choose the same addresses, one has them, and the others choose again."""
    while plan.network == "pods":
        network = wiring.Wiring(plans.cluster_id(state), plan)
        try:
            network.build()
            break
        except wiring.Taken:
            network.remove_all()
            plan = replace(plan, octet=wiring.free_octet())
            plans.save(plan, state)
    return plan


def _plan(asked: argparse.Namespace) -> Plan:
    nodes = _nodes(asked)
    nfs, host_paths = _nfs(asked.nfs), dict[str, str]()
    if asked.node_file is not None:
        nfs = plans.directories(asked.node_file, "nfs") | nfs
        host_paths = plans.directories(asked.node_file, "hostPaths")
    network, octet = _network(asked.network)
    extra = {
        name: value
        for name, value in (("lease_s", asked.node_lease), ("evict_s", asked.evict_after))
        if value is not None
    }
    if asked.crash_backoff is not None:
        extra["crash_backoff_s"] = (asked.crash_backoff, 300.0)
    return Plan(
        nodes=nodes, network=network, octet=octet, port=asked.port or 0, nfs=nfs, host_paths=host_paths, **extra
    )


def _nodes(asked: argparse.Namespace) -> list[NodePlan]:
    count = NODES_DEFAULT if asked.nodes is None else asked.nodes
    nodes = plans.uniform(count, asked.cpus or CPUS, asked.memory or MEMORY, asked.gpus or 0)
    return nodes if asked.node_file is None else plans.from_file(asked.node_file, nodes[0])


def _network(asked: str) -> tuple[str, int]:
    why = wiring.possible()
    if asked == "pods" and why:
        raise UsageError(f"--network pods: pods cannot have addresses of their own: {why}; use --network loopback")
    if asked == "loopback" or why:
        if why:
            print(
                f"Pods share this machine's network and see no volumes of their own: {why}.\n"
                "Two pods cannot listen on one port, and names of services do not resolve. Root's rights would do."
            )
        return "loopback", 1 + os.getpid() % 250
    return "pods", wiring.free_octet()


def _nfs(words: list[str]) -> dict[str, str]:
    found, problems = {}, []
    for word in words:
        export, mark, place = word.partition("=")
        if not mark or ":/" not in export:
            problems.append(f"--nfs {word}: write SERVER:/PATH=DIR")
        elif not Path(place).is_dir():
            problems.append(f"--nfs {word}: {place} is not a directory")
        else:
            found[export] = str(Path(place).resolve())
    if problems:
        raise UsageError(problems)
    return found


def _check_port(port: int) -> None:
    if not port:
        return
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError) as e:
        raise UsageError(f"--port {port} cannot be used ({e}); leave it out and a free one is taken") from e


def _check_own_port(state: Path) -> None:
    """The API keeps its port, which kubeconfigs name; somebody may have taken it while the cluster was down."""
    if processes.running(state, "api"):
        return
    try:
        port = int((state / "port").read_text())
        socket.create_server(("127.0.0.1", port)).close()
    except (FileNotFoundError, ValueError):
        return
    except OSError as e:
        raise UsageError(f"the cluster's port {port} was taken meanwhile ({e}); end who has it, or onward down") from e


def _again(asked: argparse.Namespace, state: Path) -> int:
    """There is a cluster already: it is left as it is, or brought back."""
    plan = plans.load(state)
    differs = _differences(asked, plan)
    if differs:
        text = "; ".join(differs)
        raise UsageError(f"a cluster is there already and is not changed: {text}; onward down first, or use --state")
    if processes.running(state, "supervisor"):
        print(f"The cluster is up already: {len(plan.nodes)} nodes, {state / 'kubeconfig'}; nothing was changed.")
        if asked.merge_kubeconfig:
            print(kubeconfig.merge(state / "kubeconfig"))
        return 0
    _check_own_port(state)
    print(f"Going on with the cluster in {state}.")
    _start(plan, state)
    _tell(plan, state, asked.merge_kubeconfig)
    return 0


def _differences(asked: argparse.Namespace, plan: Plan) -> list[str]:
    found = []
    if asked.node_file is not None:
        if _nodes(asked) != plan.nodes:
            found.append(f"its nodes are not those of {asked.node_file}")
    elif asked.nodes is not None and asked.nodes != len(plan.nodes):
        found.append(f"it has {len(plan.nodes)} nodes, not {asked.nodes}")
    first = plan.nodes[0].capacity
    for name, resource in (("cpus", "cpu"), ("memory", "memory"), ("gpus", "nvidia.com/gpu")):
        value = getattr(asked, name)
        if asked.node_file is None and value is not None and str(value) != first.get(resource, "0"):
            found.append(f"its nodes have {resource} {first.get(resource, '0')}, not {value}")
    times = {"node_lease": plan.lease_s, "evict_after": plan.evict_s, "crash_backoff": plan.crash_backoff_s[0]}
    for name, have in times.items():
        if getattr(asked, name) not in (None, have):
            found.append(f"its --{name.replace('_', '-')} is {have:g}, not {getattr(asked, name):g}")
    if asked.port is not None and plan.port and asked.port != plan.port:
        found.append(f"its port is {plan.port}, not {asked.port}")
    if asked.network != "auto" and asked.network != plan.network:
        found.append(f"its network is {plan.network}, not {asked.network}")
    if asked.nfs and not _nfs(asked.nfs).items() <= plan.nfs.items():
        found.append("other --nfs")
    return found


def _start(plan: Plan, state: Path) -> None:
    (state / "run").mkdir(exist_ok=True)
    (state / "run" / "ending").unlink(missing_ok=True)
    if plan.network == "pods":
        try:
            wiring.Wiring(plans.cluster_id(state), plan).build()
        except wiring.Taken as e:
            raise UsageError(f"{e}; take that one down first") from e
    processes.start_supervisor(state)
    asyncio.run(_until_ready(plan, state))


async def _until_ready(plan: Plan, state: Path) -> None:
    deadline = time.monotonic() + READY_S
    waiting = "the API server"
    while time.monotonic() < deadline:
        if processes.cluster_ends(state):
            raise OnwardError("the cluster was taken down while it was starting")
        if (state / "kubeconfig").exists():
            try:
                async with Client(load_access(state / "kubeconfig")) as client:
                    waiting = await _waiting_for(client, plan, state)
            except (ApiError, Unreachable) as e:
                waiting = f"the API server ({e})"
            if not waiting:
                return
        elif not processes.running(state, "api") and _last_words(state, "api"):
            waiting = f"the API server, which says: {_last_words(state, 'api')}"
        await asyncio.sleep(LOOK_S)
    raise OnwardError(
        f"the cluster did not get ready within {READY_S:g} s; missing: {waiting} (logs: {state / 'logs'})"
    )


async def _waiting_for(client: Client, plan: Plan, state: Path) -> str:
    """What is still missing; empty when all is there."""
    nodes = {name_of(node): node for node in (await client.list(NODES))["items"]}
    wanted = [n.name for n in plan.nodes if not (state / "nodes" / n.name / "stopped").exists()]
    missing = [name for name in wanted if not is_ready(nodes.get(name))]
    if missing:
        return f"nodes {', '.join(missing)}"
    there = {key_of(s) for s in (await client.list(SERVICES))["items"]}
    missing = [name_of(s) for s in services(plan) if key_of(s) not in there]
    if missing:
        return f"services {', '.join(missing)}"
    names = {node.name for node in plan.nodes}
    parts = [part.name for part in processes.parts(plan) if part.name not in names]
    dead = [name for name in parts if not processes.running(state, name)]
    if dead:
        return f"processes {', '.join(dead)}"
    defined = {name_of(crd) for crd in (await client.list(CRDS))["items"]}
    missing = [name_of(crd) for crd in crds() if name_of(crd) not in defined]
    return f"definitions of {', '.join(missing)}" if missing else ""


def is_ready(node: Obj | None) -> bool:
    conditions = ((node or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _last_words(state: Path, name: str) -> str:
    try:
        lines = processes.log_file(state, name).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join(lines[-LAST_LINES:])


def _tell(plan: Plan, state: Path, merge: bool) -> None:
    first = plan.nodes[0].capacity
    each = ", ".join(f"{name} {value}" for name, value in first.items() if name != "pods")
    same = all(n.capacity == first for n in plan.nodes)
    count = f"{len(plan.nodes)} node{'' if len(plan.nodes) == 1 else 's'}"
    print(f"The cluster is up: {count}{f', each with {each}' if same else ''}.")
    file = state / "kubeconfig"
    if merge:
        print(kubeconfig.merge(file))
        print("  kubectl get nodes")
    else:
        print(f"  export KUBECONFIG={file}")
        print("  kubectl get nodes            # or, without kubectl: onward get nodes")
    print("  onward down                  # takes everything away again")
