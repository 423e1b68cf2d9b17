"""Server-side apply: a client states what it wants of an object; fields others own are conflicts, not accidents."""

from __future__ import annotations

import json
from typing import Any

from onward.local.api import lifecycle, ownership, typed
from onward.local.api.clock import now_text
from onward.local.api.decoding import Malformed, parse
from onward.local.api.ownership import Entry
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.status import bad_request, conflict, internal, not_found
from onward.local.api.store import Item, clone
from onward.local.api.views import shown_form

Json = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def apply(api: Api, target: Target, raw: bytes, options: WriteOptions) -> tuple[Item, bool]:
    """The applied object, and whether it is new."""
    resource, manager = target.resource, options.field_manager
    config = _read(raw)
    if config.get("kind") != resource.kind or config.get("apiVersion") != resource.api_version:
        group, _, version = str(config.get("apiVersion", "")).rpartition("/")
        named = f"{group}/{version}, Kind={config.get('kind', '')}"
        raise bad_request(f"invalid object type: {named[:300]}")
    config.setdefault("metadata", {})
    if not isinstance(config["metadata"], dict):
        raise bad_request("metadata must be an object")
    if config["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    problems = typed.problems(resource.schema, config)
    if problems:
        where = f"{config['metadata'].get('namespace', '')}/{config['metadata'].get('name', '')}"
        kind = f"{resource.group}/{resource.version}, Kind={resource.kind}"
        listed = problems[0] if len(problems) == 1 else "errors:\n  " + "\n  ".join(problems)
        raise internal(f"failed to create typed patch object ({where}; {kind}): {listed}")
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


def _read(raw: bytes) -> Json:
    try:
        config = parse(raw, "application/yaml")
    except Malformed as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: an apply patch must be an object")
    return config


async def _create(api: Api, target: Target, wanted: Json, manager: str, options: WriteOptions) -> tuple[Item, bool]:
    resource, key = target.resource, api.key(target)
    uid = wanted["metadata"].get("uid")
    if uid:
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(resource.group, resource.plural, target.name, why)
    api.check_place(resource, target.namespace, target.name)
    async with api.store.lock(key):
        if api.store.get(key) is None:
            mine = ownership.first_apply(resource, wanted, manager)
            new = api.prepare_new(target, clone(wanted), options, lambda *_: mine)
            if resource.warning and resource.key not in api.settings.controllers:
                options.warnings.append(resource.warning)
            return await api.commit(key, new, options), True
    # Someone else was faster: apply to what they made.
    compute = _merger(target, wanted, manager, options.force)
    return await api.change(target, compute, options, operation="Apply"), False


def _note_applied(meta: Json, wanted: Json) -> None:
    """An object that kubectl also applies in its own way remembers what was applied last."""
    notes = meta.get("annotations") or {}
    if LAST_APPLIED not in notes:
        return
    config = clone(wanted)
    mine = config["metadata"].get("annotations") or {}
    mine.pop(LAST_APPLIED, None)
    if not mine:
        config["metadata"].pop("annotations", None)
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    meta["annotations"] = {**notes, LAST_APPLIED: text + "\n"}


def _merger(target: Target, wanted: Json, manager: str, force: bool) -> Any:
    resource = target.resource

    def compute(current: Item) -> Json:
        live = shown_form(resource, current.body)
        mine = Entry(manager, "Apply", resource.api_version, target.subresource, now_text())
        merged, entries = ownership.on_apply(resource, live, wanted, mine, force)
        merged["metadata"] = dict(merged["metadata"])
        if manager == "kubectl":
            _note_applied(merged["metadata"], wanted)
        ownership.store(merged, entries)
        for kept in ("resourceVersion", "uid"):
            if kept in wanted["metadata"]:
                merged["metadata"][kept] = wanted["metadata"][kept]
        return clone(merged)

    return compute
