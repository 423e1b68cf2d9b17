"""`onward up`, `onward down`, `onward chaos node`: the cluster on this machine. The work is done in `onward.local`, by
processes of its own; this is its command line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import onward
from onward.errors import UsageError
from onward.kube.access import local_state

CHAOS = ("stop", "start", "partition", "heal", "drain", "sub-health")


def _local(*words: str) -> int:
    sys.stdout.flush()
    return subprocess.run(_command(*words), check=False).returncode


def _command(*words: str) -> list[str]:
    """Not by `python -m`: that takes modules from the current directory first, whose `queue.py` is none of ours."""
    root = str(Path(onward.__file__).resolve().parents[1])
    code = f"import sys; sys.path[0] = {root!r}; from onward.local.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", code, *words]


def _words(given: dict[str, object]) -> list[str]:
    """Flags as they were typed; those that were not are left out."""
    found: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif isinstance(value, tuple):
            found += [word for each in value for word in (flag, str(each))]
        elif value is not None and value is not False:
            found += [flag, str(value)]
    return found


STATE = click.option("--state", metavar="DIR", help="Where the cluster lives (default ~/.local/state/onward/cluster).")


@click.command("up")
@click.option("--nodes", type=int, metavar="N", help="How many nodes (default 4).")
@click.option("--cpus", metavar="N", help="Cpus of each node (default 8).")
@click.option("--memory", metavar="SIZE", help="Memory of each node (default 16Gi).")
@click.option("--gpus", type=int, metavar="N", help="nvidia.com/gpu of each node (default 0).")
@click.option("--node-file", metavar="FILE", help="Nodes as a YAML file lists them: labels, taints, resources.")
@click.option("--nfs", multiple=True, metavar="SERVER:/PATH=DIR", help="What an nfs volume is on this machine.")
@click.option("--port", type=int, metavar="PORT", help="Port of the API on 127.0.0.1 (default: a free one).")
@click.option("--network", type=click.Choice(["auto", "pods", "loopback"]), help="pods: each has an address (root).")
@click.option("--merge-kubeconfig", is_flag=True, help="Add the cluster to ~/.kube/config as the current one.")
@click.option("--crash-backoff", type=float, metavar="S", help="First wait of a crashing container (default 10).")
@click.option("--node-lease", type=float, metavar="S", help="A node is NotReady after four times this (default 10).")
@click.option("--evict-after", type=float, metavar="S", help="Pods of a lost node are deleted then (default 300).")
@STATE
def up(**given: object) -> int:
    """Start a Kubernetes on this machine: kubectl works, and pods are processes."""
    return _local("up", *_words(given))


@click.command("down")
@click.option("--keep", is_flag=True, help="Keep its objects for the next onward up.")
@click.option("--grace", type=float, metavar="S", help="Time for pods to end (default 2).")
@STATE
def down(**given: object) -> int:
    """End that Kubernetes and everything it started."""
    return _local("down", *_words(given))


@click.command("operator")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster (default: KUBECONFIG, or the pod's own).")
@click.option("--context", metavar="NAME", help="Which of its contexts.")
@click.option(
    "--gang",
    "--enableGangScheduling",
    "gang",
    type=click.Choice(["auto", "on", "off", "true", "false"]),
    is_flag=False,
    flag_value="on",
    default="auto",
    show_default=True,
    help="Pods of a job wait for a PodGroup; auto: where PodGroups are served.",
)
@click.option("-n", "--namespace", "only", default="", metavar="NAME", help="Mind the jobs of this namespace only.")
@click.option("--lease-namespace", default="", metavar="NAME", help="Of the lease (default: its own, or kube-system).")
@click.option("--define", is_flag=True, help="Put the definitions of onward's own kinds there first.")
def operator(
    kubeconfig: str | None, context: str | None, gang: str, only: str, lease_namespace: str, define: bool
) -> int:
    """Turn jobs into pods on a cluster, replace lost pods, and keep their status.

    One copy per cluster works, by a lease; more may wait. onward up starts one of its own.
    """
    import asyncio

    from onward.kube.access import load_access
    from onward.log import tell_all
    from onward.operator.process import OperatorSettings, serve

    tell_all()
    access = load_access(kubeconfig, context)
    settings = OperatorSettings(gang=gang, only=only, namespace=lease_namespace, define=define)
    asyncio.run(serve(access, settings))
    return 0


CLUSTER_VERBS = (up, down, operator)


def cluster_is_here() -> bool:
    return (local_state() / "cluster.json").exists()


def cluster_status() -> int:
    return _local("status", "--output", "text")


def cluster_facts() -> tuple[int, dict[str, Any]]:
    """How it stands, for programs; and the exit code that says whether all is well."""
    done = subprocess.run(_command("status", "--output", "json"), stdout=subprocess.PIPE, text=True, check=False)
    try:
        return done.returncode, dict(json.loads(done.stdout))
    except ValueError:  # it was taken down in this moment, or cannot be read: that was said on stderr
        return done.returncode or 1, {}


def chaos_node(words: Sequence[str]) -> int:
    if len(words) < 2 or words[0] not in CHAOS:
        raise UsageError(f"write onward chaos node {'|'.join(CHAOS)} NODE")
    verb, *nodes = words
    return max(_local("chaos", verb, node) for node in nodes)
