"""`onward get` and `onward logs`."""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

from onward.cli.catalog import Catalog
from onward.cli.objects import names
from onward.core.words import read_time
from onward.errors import OnwardError, UsageError
from onward.kube.client import ApiError, Client
from onward.kube.objects import PODS, Obj, Resource, name_of, version_of

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
FORMS = ("", "wide", "name", "json", "yaml")


def seconds(text: str) -> float:
    """30, 30s, 5m, 2h."""
    found = read_time(text)
    if found is None:
        raise UsageError(f"{text!r} is not a time; write for example 30s, 5m or 2h")
    return found


async def get(
    client: Client,
    what: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    selector: str | None,
    field_selector: str | None,
    output: str,
    watch: bool,
) -> int:
    if output not in FORMS:
        raise UsageError(f"-o {output}: the forms are wide, name, json and yaml")
    catalog = await Catalog.read(client)
    where = None if all_namespaces else namespace or client.access.namespace
    params = {k: v for k, v in (("labelSelector", selector), ("fieldSelector", field_selector)) if v}
    wanted = [(catalog.find(kind), name) for kind, name in names(what)]
    if watch:
        return await _watch(client, wanted, where, params, output)
    if output in ("json", "yaml", "name"):
        return await _plain(client, wanted, where, params, output)
    several = len({r for r, _ in wanted}) > 1
    shown = False
    for resource, some in _grouped(wanted):
        if shown:
            print()
        shown = await _table(client, resource, some, where, params, output == "wide", several, all_namespaces) or shown
    if not shown:
        there = f" in {where} namespace." if where and any(r.namespaced for r, _ in wanted) else ""
        print(f"No resources found{there}", file=sys.stderr)
    return 0


def _grouped(wanted: list[tuple[Resource, str | None]]) -> list[tuple[Resource, list[str]]]:
    found: dict[Resource, list[str]] = {}
    for resource, name in wanted:
        found.setdefault(resource, []).extend([name] if name else [])
    return list(found.items())


async def _table(
    client: Client,
    resource: Resource,
    some: list[str],
    where: str | None,
    params: dict[str, str],
    wide: bool,
    several: bool,
    all_namespaces: bool,
) -> bool:
    answers = []
    if some:
        for name in some:
            answers.append(await client.request("GET", resource.path(where, name), params=params, accept=TABLE))
    else:
        answers.append(await client.request("GET", resource.path(where), params=params, accept=TABLE))
    columns = answers[0].get("columnDefinitions")
    if columns is None:
        columns, rows = _own_table(answers)
    else:
        rows = [row for answer in answers for row in answer.get("rows") or []]
    chosen = [i for i, c in enumerate(columns) if wide or not c.get("priority")]
    with_namespace = all_namespaces and resource.namespaced
    lines = [(["NAMESPACE"] if with_namespace else []) + [columns[i]["name"].upper() for i in chosen]]
    for row in rows:
        cells = [_cell(row["cells"][i]) for i in chosen]
        if several:
            cells[0] = f"{resource.kind.lower()}{'.' + resource.group if resource.group else ''}/{cells[0]}"
        if with_namespace:
            cells.insert(0, str(row["object"]["metadata"].get("namespace", "")))
        lines.append(cells)
    if len(lines) == 1:
        return False
    print_columns(lines)
    return True


def _cell(value: Any) -> str:
    return "<none>" if value is None or value == "" else str(value)


def _own_table(answers: list[Obj]) -> tuple[list[Obj], list[Obj]]:
    """A server without tables: names at least."""
    items = [item for answer in answers for item in answer.get("items", [answer])]
    rows = [{"cells": [name_of(i), i["metadata"].get("creationTimestamp", "")], "object": i} for i in items]
    return [{"name": "Name"}, {"name": "Created"}], rows


def print_columns(lines: list[list[str]]) -> None:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("   ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())


async def _plain(
    client: Client, wanted: list[tuple[Resource, str | None]], where: str | None, params: dict[str, str], output: str
) -> int:
    items: list[Obj] = []
    single = len(wanted) == 1 and wanted[0][1] is not None
    for resource, name in wanted:
        if name:
            items.append(await client.get(resource, name, where))
            continue
        listed = await client.list(resource, where, **params)
        for item in listed["items"]:
            items.append({"apiVersion": resource.api_version, "kind": resource.kind, **item})
    if output == "name":
        kinds = {r.kind: f"{r.kind.lower()}{'.' + r.group if r.group else ''}" for r, _ in wanted}
        print("\n".join(f"{kinds.get(i['kind'], i['kind'].lower())}/{name_of(i)}" for i in items))
        return 0
    whole = items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items}
    print(json.dumps(whole, indent=2) if output == "json" else yaml.safe_dump(whole, sort_keys=False).rstrip())
    return 0


async def _watch(
    client: Client, wanted: list[tuple[Resource, str | None]], where: str | None, params: dict[str, str], output: str
) -> int:
    resource, name = wanted[0]
    if name:
        params = {**params, "fieldSelector": f"metadata.name={name}"}
    listed = await client.list(resource, where, **params)
    for item in listed["items"]:
        _line("ADDED", item, output)
    async for event in client.watch(resource, where, version_of(listed), **params):
        if event["type"] != "BOOKMARK":
            _line(event["type"], event["object"], output)
    return 0


def _line(kind: str, obj: Obj, output: str) -> None:
    if output in ("json", "yaml"):
        print(json.dumps(obj) if output == "json" else f"---\n{yaml.safe_dump(obj, sort_keys=False)}", flush=True)
        return
    phase = (obj.get("status") or {}).get("phase", "")
    print(f"{kind:<9} {name_of(obj):<40} {phase}".rstrip(), flush=True)


async def logs(
    client: Client,
    pod: str,
    namespace: str | None,
    container: str | None,
    follow: bool,
    previous: bool,
    tail: int | None,
    since: str | None,
    timestamps: bool,
) -> int:
    where = namespace or client.access.namespace
    name = pod.removeprefix("pod/").removeprefix("pods/")
    params = {"follow": "true"} if follow else {}
    if container is None:
        spec = (await client.get(PODS, name, where))["spec"]
        container = spec["containers"][0]["name"]
    params["container"] = str(container)
    if previous:
        params["previous"] = "true"
    if tail is not None:
        params["tailLines"] = str(tail)
    if since:
        params["sinceSeconds"] = str(max(1, round(seconds(since))))
    if timestamps:
        params["timestamps"] = "true"
    try:
        async for chunk in client.stream(PODS.path(where, name, "log"), params):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except ApiError as e:
        raise OnwardError(f"logs of {where}/{name}: {e}") from e
    return 0
