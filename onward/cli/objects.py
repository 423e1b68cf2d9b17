"""`onward get|describe|apply|delete|logs|wait`: for people without kubectl. The same words where both have them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onward.kube.access import Access, load_access, local_state

if TYPE_CHECKING:
    from onward.kube.client import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def access(kubeconfig: str | None) -> Access:
    """--kubeconfig, KUBECONFIG, the cluster of onward up, ~/.kube/config."""
    import os

    own = local_state() / "kubeconfig"
    if kubeconfig is None and not os.environ.get("KUBECONFIG") and own.exists():
        return load_access(own)
    return load_access(kubeconfig)


def ask(kubeconfig: str | None, call: Callable[[Client], Awaitable[T]]) -> T:
    from onward.kube.client import Client  # not above: every command of ours would have to import an HTTP client

    async def go() -> T:
        async with Client(access(kubeconfig), user_agent="onward-cli") as client:
            return await call(client)

    return asyncio.run(go())


def _common(function: F) -> F:
    function = click.option("--kubeconfig", metavar="FILE", help="The cluster to talk to.")(function)
    return click.option("-n", "--namespace", metavar="NAME", help="The namespace (default: that of the context).")(
        function
    )


FILES = click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="YAML or JSON; - is stdin.")
SELECTOR = click.option("-l", "--selector", metavar="LABELS", help="Only those with these labels.")


@click.command("get")
@click.argument("what", nargs=-1, required=True, metavar="KIND [NAME...]")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@SELECTOR
@click.option("--field-selector", metavar="FIELDS", help="Only those with these fields.")
@click.option("-o", "--output", default="", metavar="FORM", help="wide, name, json or yaml (default: a table).")
@click.option("-w", "--watch", is_flag=True, help="Go on and show changes.")
@_common
def get(what: tuple[str, ...], **given: Any) -> int:
    """List objects of the cluster."""
    from onward.cli.getting import get as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, what, **given))


@click.command("describe")
@click.argument("what", nargs=-1, required=True, metavar="KIND [NAME...]")
@SELECTOR
@_common
def describe(what: tuple[str, ...], **given: Any) -> int:
    """Show objects in words, with their events."""
    from onward.cli.describing import describe as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, what, **given))


@click.command("apply")
@FILES
@_common
def apply(files: tuple[str, ...], **given: Any) -> int:
    """Make the cluster hold what files say."""
    from onward.cli.applying import apply as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, files, **given))


@click.command("delete")
@click.argument("what", nargs=-1, metavar="[KIND NAME...]")
@FILES
@SELECTOR
@click.option("--all", "everything", is_flag=True, help="All of that kind in the namespace.")
@click.option("--grace-period", type=int, metavar="S", help="Seconds that pods have to end.")
@click.option("--force", is_flag=True, help="Remove pods at once, whether or not their node agrees.")
@click.option("--wait/--no-wait", default=True, help="Wait until they are gone (default).")
@_common
def delete(what: tuple[str, ...], files: tuple[str, ...], **given: Any) -> int:
    """Delete objects of the cluster."""
    from onward.cli.applying import delete as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, what, files, **given))


@click.command("logs")
@click.argument("pod")
@click.option("-c", "--container", metavar="NAME", help="Which of its containers.")
@click.option("-f", "--follow", is_flag=True, help="Go on and show what comes.")
@click.option("-p", "--previous", is_flag=True, help="Of the container before the last restart.")
@click.option("--tail", type=int, metavar="N", help="Only the last lines.")
@click.option("--since", metavar="TIME", help="Only what is newer than 30s, 5m or 2h.")
@click.option("--timestamps", is_flag=True, help="With the time of each line.")
@_common
def logs(pod: str, **given: Any) -> int:
    """Print what a pod has written."""
    from onward.cli.getting import logs as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, pod, **given))


@click.command("wait")
@click.argument("what", nargs=-1, required=True, metavar="KIND/NAME...")
@click.option("--for", "condition", default="condition=Ready", show_default=True, metavar="WHAT")
@click.option("--timeout", default="30s", show_default=True, metavar="TIME", help="How long.")
@_common
def wait(what: tuple[str, ...], **given: Any) -> int:
    """Wait for condition=NAME[=VALUE], jsonpath=PATH=VALUE, create or delete."""
    from onward.cli.waiting import wait as go

    return ask(given.pop("kubeconfig"), lambda client: go(client, what, **given))


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def validate(files: tuple[str, ...], output: str) -> int:
    """Say what is wrong with job files, before they are submitted.

    Every problem is listed, as FILE:LINE: REASON: TEXT. No cluster is asked. FILE may be a directory, or - for what
    comes in. The exit code is 1 when there are problems.
    """
    from onward.cli.validating import validate as go

    return go(files, output)


OBJECT_VERBS = (validate, apply, get, describe, logs, wait, delete)


def names(what: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """`pods`, `pod a b`, `pod/a svc/b`, `pods,svc`: kinds with a name, or without."""
    if any("/" in word for word in what):
        pairs = [word.partition("/") for word in what]
        return [(kind, name or None) for kind, _, name in pairs]
    kinds, given = what[0].split(","), what[1:]
    return [(kind, name) for kind in kinds for name in (given or (None,))]


def read_text(path: str) -> str:
    import sys

    return sys.stdin.read() if path == "-" else Path(path).read_text()
