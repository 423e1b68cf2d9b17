"""`onward describe`: an object in words, and its events."""

from __future__ import annotations

import time
from typing import Any

import yaml

from onward.cli.catalog import Catalog
from onward.cli.getting import print_columns
from onward.cli.objects import names
from onward.kube.client import Client
from onward.kube.objects import EVENTS, Obj, name_of, namespace_of, read_stamp, uid_of

LEFT_OUT = ("managedFields", "resourceVersion", "uid", "generation", "selfLink", "name", "namespace")


async def describe(client: Client, what: tuple[str, ...], namespace: str | None, selector: str | None) -> int:
    catalog = await Catalog.read(client)
    first = True
    for kind, name in names(what):
        resource = catalog.find(kind)
        where = (namespace or client.access.namespace) if resource.namespaced else None
        if name:
            found = [await client.get(resource, name, where)]
        else:
            found = (await client.list(resource, where, **({"labelSelector": selector} if selector else {})))["items"]
        for obj in found:
            if not first:
                print("\n")
            first = False
            obj = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
            _show(obj)
            await _events(client, obj)
    return 0


def _show(obj: Obj) -> None:
    print(f"Name:         {name_of(obj)}")
    if namespace_of(obj):
        print(f"Namespace:    {namespace_of(obj)}")
    print(f"Kind:         {obj['kind']} ({obj['apiVersion']})")
    metadata = {k: v for k, v in obj["metadata"].items() if k not in LEFT_OUT}
    for title, part in (
        ("Metadata", metadata),
        *((k.capitalize(), v) for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")),
    ):
        if part:
            print(f"{title}:")
            print(_indented(part))


def _indented(part: Any) -> str:
    text = yaml.safe_dump(part, sort_keys=False, default_flow_style=False, allow_unicode=True)
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())


async def _events(client: Client, obj: Obj) -> None:
    where = namespace_of(obj) or "default"
    listed = await client.list(EVENTS, where, fieldSelector=f"involvedObject.name={name_of(obj)}")
    found = [e for e in listed["items"] if e["involvedObject"].get("uid") in (None, "", uid_of(obj))]
    found = [e for e in found if e["involvedObject"].get("kind") == obj["kind"]]
    if not found:
        print("Events:       <none>")
        return
    print("Events:")
    lines = [["  Type", "Reason", "Age", "From", "Message"]]
    for event in sorted(found, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or "")):
        lines.append(
            [
                f"  {event.get('type', '')}",
                event.get("reason", ""),
                _age(event),
                (event.get("source") or {}).get("component") or event.get("reportingComponent", ""),
                event.get("message", "").strip(),
            ]
        )
    print_columns(lines)


def _age(event: Obj) -> str:
    last = read_stamp(event.get("lastTimestamp") or event.get("eventTime"))
    words = _words(time.time() - last) if last else "?"
    count = int(event.get("count") or 1)
    return f"{words} (x{count})" if count > 1 else words


def _words(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
