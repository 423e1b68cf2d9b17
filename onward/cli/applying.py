"""`onward apply` and `onward delete`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from onward.cli import yamlfiles
from onward.cli.catalog import Catalog
from onward.cli.objects import names, read_text
from onward.errors import OnwardError, UsageError
from onward.kube.client import APPLY, ApiError, Client
from onward.kube.objects import Obj, Resource, name_of, version_of

GONE_S = 120.0
LOOK_S = 0.1


def documents(files: tuple[str, ...]) -> list[Obj]:
    """Every object in the files and directories; what is wrong with any of them is said at once."""
    found: list[Obj] = []
    problems: list[str] = []
    for file in files:
        for path in yamlfiles.paths(file):
            try:
                for i, (_, doc) in enumerate(yamlfiles.documents(read_text(path))):
                    found += _objects(doc, f"{path}, document {i + 1}", problems)
            except (*yamlfiles.UNREADABLE, *yamlfiles.MALFORMED) as e:
                problems.append(f"{path}: {yamlfiles.in_words(e)}")
    if not found and not problems:
        problems.append("nothing to do: -f FILE names no object")
    if problems:
        raise UsageError(problems)
    return found


def _objects(doc: Any, where: str, problems: list[str]) -> list[Obj]:
    if doc is None:
        return []
    if not isinstance(doc, dict) or not all(isinstance(doc.get(k), str) and doc[k] for k in ("apiVersion", "kind")):
        problems.append(f"{where}: no object; apiVersion and kind are needed")
        return []
    if doc["kind"].endswith("List") and isinstance(doc.get("items"), list):
        return [o for i, item in enumerate(doc["items"]) for o in _objects(item, f"{where}, items[{i}]", problems)]
    metadata = doc.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        problems.append(f"{where}: {doc['kind']} has no metadata.name")
        return []
    try:
        json.dumps(doc, allow_nan=False)
    except (TypeError, ValueError) as e:  # bytes, infinity: what YAML can say and JSON cannot
        problems.append(f"{where}: {doc['kind']} {metadata['name']} cannot be sent: {e}")
        return []
    _quote(doc)
    return [doc]


def _quote(value: Any) -> None:
    """Labels and annotations are texts; people forget the quotes around numbers."""
    if isinstance(value, list):
        for each in value:
            _quote(each)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key in ("labels", "annotations", "matchLabels", "nodeSelector") and isinstance(inner, dict):
            for name, text in inner.items():
                if isinstance(text, bool):
                    inner[name] = "true" if text else "false"
                elif isinstance(text, (int, float)):
                    inner[name] = str(text)
        _quote(inner)


async def apply(client: Client, files: tuple[str, ...], namespace: str | None) -> int:
    objects = documents(files)
    catalog = await Catalog.read(client)
    failed = 0
    for obj in objects:
        try:
            resource = catalog.of(obj)
        except UsageError:
            catalog = await Catalog.read(client)  # an object before this one may have been its CRD
            try:
                resource = catalog.of(obj)
            except UsageError as e:
                print(f"onward: {e}", file=sys.stderr)
                failed += 1
                continue
        try:
            print(await _one(client, resource, obj, namespace))
        except ApiError as e:
            print(f"onward: {obj['kind']} {name_of(obj)}: {e}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def _where(client: Client, resource: Resource, obj: Obj, namespace: str | None) -> str | None:
    if not resource.namespaced:
        return None
    return str(obj["metadata"].get("namespace") or namespace or client.access.namespace)


async def _one(client: Client, resource: Resource, obj: Obj, namespace: str | None) -> str:
    where, name = _where(client, resource, obj, namespace), name_of(obj)
    try:
        before = version_of(await client.get(resource, name, where))
    except ApiError as e:
        if e.code != 404:
            raise
        before = ""
    after = await client.patch(
        resource, name, obj, where, content_type=APPLY, fieldManager="onward", force="true", fieldValidation="Strict"
    )
    word = "created" if not before else "unchanged" if version_of(after) == before else "configured"
    return f"{resource.kind.lower()}{'.' + resource.group if resource.group else ''}/{name} {word}"


async def delete(
    client: Client,
    what: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str | None,
    selector: str | None,
    everything: bool,
    grace_period: int | None,
    force: bool,
    wait: bool,
) -> int:
    catalog = await Catalog.read(client)
    targets: list[tuple[Resource, str, str | None]] = []
    if files:
        for obj in documents(files):
            resource = catalog.of(obj)
            targets.append((resource, name_of(obj), _where(client, resource, obj, namespace)))
    for kind, name in names(what) if what else []:
        resource = catalog.find(kind)
        where = (namespace or client.access.namespace) if resource.namespaced else None
        if name:
            targets.append((resource, name, where))
        elif selector or everything:
            listed = await client.list(resource, where, **({"labelSelector": selector} if selector else {}))
            targets += [(resource, name_of(item), where) for item in listed["items"]]
        else:
            raise UsageError(f"which {kind}? name them, or use -l LABELS or --all")
    if not targets and not (selector or everything):
        raise UsageError("nothing to delete: write KIND NAME, or -f FILE")
    options: Obj = {"propagationPolicy": "Background"}
    if force or grace_period is not None:
        options["gracePeriodSeconds"] = 0 if force else grace_period
    failed = 0
    for resource, name, where in targets:
        try:
            await client.delete(resource, name, where, options)
            print(f"{resource.kind.lower()} {name!r} deleted")
        except ApiError as e:
            failed += 1
            print(f"onward: {e}", file=sys.stderr)
    if wait:
        await _until_gone(client, targets)
    return 1 if failed else 0


async def _until_gone(client: Client, targets: list[tuple[Resource, str, str | None]]) -> None:
    deadline = time.monotonic() + GONE_S
    for resource, name, where in targets:
        while True:
            try:
                await client.get(resource, name, where)
            except ApiError as e:
                if e.code == 404:
                    break
                raise
            if time.monotonic() > deadline:
                raise OnwardError(f"{resource.kind.lower()} {name} is still there after {GONE_S:g} s (--no-wait)")
            await asyncio.sleep(LOOK_S)
