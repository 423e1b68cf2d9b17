"""Server-side apply: a client states what it wants of an object; fields others own are conflicts, not accidents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.local.api import fieldsets, lifecycle, ownership
from onward.local.api.clock import now_text
from onward.local.api.decoding import parse
from onward.local.api.ownership import Entry
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.status import ApiError, apply_conflict, bad_request, not_found
from onward.local.api.store import Item, clone
from onward.local.api.views import shown_form

Json = dict[str, Any]


async def apply(
    api: Api, target: Target, raw: bytes, options: WriteOptions, query: Mapping[str, str]
) -> tuple[Item, bool]:
    """The applied object, and whether it is new."""
    resource = target.resource
    manager = query.get("fieldManager", "")
    if not manager:
        text = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        raise ApiError(422, "Invalid", text)
    config = parse(raw, "application/yaml")
    if not isinstance(config, dict):
        raise bad_request("an apply patch must be an object")
    for name in ("apiVersion", "kind"):
        if not config.get(name):
            raise bad_request(f"an apply patch must have {name}")
    config.setdefault("metadata", {})
    if not isinstance(config["metadata"], dict):
        raise bad_request("metadata must be an object")
    if config["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    config["metadata"].setdefault("name", target.name)
    wanted = api.decode(resource, config, options)
    wanted["metadata"].pop("managedFields", None)
    if target.subresource == "status":
        keep = ("apiVersion", "kind", "metadata", "status")
        wanted = {key: value for key, value in wanted.items() if key in keep}
    elif lifecycle.has_status(resource):
        wanted.pop("status", None)
    key = api.key(target)
    if api.store.get(key) is None:
        if target.subresource:
            raise not_found(resource.group, resource.plural, target.name)
        return await _create(api, target, wanted, manager, options)
    compute = _merger(target, wanted, manager, options.force)
    return await api.change(target, compute, options, operation="Apply"), False


async def _create(api: Api, target: Target, wanted: Json, manager: str, options: WriteOptions) -> tuple[Item, bool]:
    resource, key = target.resource, api.key(target)
    if wanted["metadata"].get("uid"):
        raise not_found(resource.group, resource.plural, target.name)
    api.check_namespace(resource, target.namespace, target.name)
    async with api.store.lock(key):
        if api.store.get(key) is None:
            paths = set(ownership.owned(resource, wanted))
            new = api.prepare_new(target, clone(wanted), options)
            ownership.store(new, [Entry(manager, "Apply", resource.api_version, time=now_text(), paths=paths)])
            if resource.warning and resource.key not in api.settings.controllers:
                options.warnings.append(resource.warning)
            return await api.commit(key, new, options), True
    # Someone else was faster: apply to what they made.
    compute = _merger(target, wanted, manager, options.force)
    return await api.change(target, compute, options, operation="Apply"), False


def _merger(target: Target, wanted: Json, manager: str, force: bool) -> Any:
    resource = target.resource

    def compute(current: Item) -> Json:
        live = clone(shown_form(resource, current.body))
        entries = ownership.decode(live["metadata"].get("managedFields"))
        mine = Entry(manager, "Apply", resource.api_version, target.subresource, now_text())
        before = next((each for each in entries if each.same(mine)), None)
        config, have = ownership.owned(resource, wanted), ownership.owned(resource, live)
        mine.paths = set(config)
        others = [each for each in entries if each is not before]
        missing = object()
        differing = {path for path, value in config.items() if have.get(path, missing) != value}
        clashes = [(each, path) for each in others for path in sorted(differing & each.paths)]
        if clashes and not force:
            raise apply_conflict([(each.manager, each.described(), fieldsets.shown(path)) for each, path in clashes])
        for each, path in clashes:
            each.paths.discard(path)
        managed = live["metadata"].pop("managedFields", None)
        merged: Json = fieldsets.merge(resource.schema, live, wanted)
        if before is not None:
            held = set().union(*(each.paths for each in others)) if others else set()
            for path in sorted(before.paths - mine.paths, key=len):  # an item before its fields
                if path not in held and not any(other[: len(path)] == path for other in held | mine.paths):
                    fieldsets.remove(resource.schema, merged, path)
            if before.paths == mine.paths and not differing:
                mine.time = before.time
        new_entries = [mine if each is before else each for each in entries] if before else [*entries, mine]
        ownership.store(merged, new_entries)
        merged["metadata"].setdefault("managedFields", managed)
        for kept in ("resourceVersion", "uid"):
            if kept in wanted["metadata"]:
                merged["metadata"][kept] = wanted["metadata"][kept]
        return merged

    return compute
