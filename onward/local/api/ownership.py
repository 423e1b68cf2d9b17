"""managedFields: who owns which field, after every create, update and server-side apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.local.api import fieldsets, zeros
from onward.local.api.clock import now_text
from onward.local.api.fieldsets import Path
from onward.local.api.registry import Resource
from onward.local.api.schema import Schema
from onward.local.api.status import ApiError, apply_conflict, bad_request
from onward.local.api.store import clone
from onward.local.api.views import kept_schema

Json = dict[str, Any]
MAX_UPDATERS = 10
ANCIENT, BEFORE = "ancient-changes", "before-first-apply"
# Fields nobody owns: the server writes them.
STRIPPED = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
            "selfLink"}  # fmt: skip


@dataclass
class Entry:
    """One line of managedFields."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""
    time: str = ""
    paths: set[Path] = field(default_factory=set)

    def same(self, other: Entry) -> bool:
        mine = (self.manager, self.operation, self.subresource, self.api_version if self.operation == "Update" else "")
        theirs = (other.manager, other.operation, other.subresource,
                  other.api_version if other.operation == "Update" else "")  # fmt: skip
        return mine == theirs

    def order(self) -> tuple[str, ...]:
        return (self.operation, self.time, self.manager, self.api_version, self.subresource)

    def encode(self) -> Json:
        shown: Json = {
            "manager": self.manager, "operation": self.operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": fieldsets.write(self.paths),
        }  # fmt: skip
        if self.time:
            shown["time"] = self.time
        if self.subresource:
            shown["subresource"] = self.subresource
        return shown

    def described(self) -> str:
        """What follows the manager's name in a conflict."""
        part = f' with subresource "{self.subresource}"' if self.subresource else ""
        return part + (f" using {self.api_version}" if self.operation == "Update" else "")


def decode(raw: Any) -> list[Entry]:
    """managedFields as stored, or as a client sent it."""
    found = []
    for each in raw or ():
        if not each:
            continue
        if not isinstance(each, dict) or each.get("operation") not in ("Apply", "Update"):
            raise bad_request('metadata.managedFields: operation must be "Apply" or "Update"')
        found.append(
            Entry(
                str(each.get("manager", "")), each["operation"], str(each.get("apiVersion", "")),
                str(each.get("subresource", "")), str(each.get("time") or ""),
                fieldsets.read(each.get("fieldsV1") or {}),
            )
        )  # fmt: skip
    return found


def _filtered(resource: Resource, paths: set[Path], subresource: str = "") -> set[Path]:
    """Without what nobody owns: what the server writes, and the status where it has its own door."""
    hidden = "f:spec" if subresource == "status" else "f:status" if "status" in resource.subresources else ""
    return {
        path
        for path in paths
        if path[0] not in ("f:apiVersion", "f:kind", hidden)
        and not (path[0] == "f:metadata" and (len(path) == 1 or path[1][2:] in STRIPPED))
    }


def store(body: Json, entries: Sequence[Entry]) -> None:
    """Writes the entries down: in the server's order, and never more than some ten of updates."""
    kept = _capped([each for each in entries if each.paths])
    if kept:
        body["metadata"]["managedFields"] = [each.encode() for each in sorted(kept, key=Entry.order)]
    else:
        body["metadata"].pop("managedFields", None)


def _capped(entries: list[Entry]) -> list[Entry]:
    """The oldest updates become one entry."""
    updates = sorted((each for each in entries if each.operation == "Update"), key=Entry.order)
    kept = list(entries)
    while len(updates) > MAX_UPDATERS:
        first, second = updates[:2]
        joined = Entry(ANCIENT, "Update", second.api_version, time=second.time, paths=first.paths | second.paths)
        kept = [joined, *(each for each in kept if each is not first and each is not second)]
        updates[:2] = [joined]
    return kept


def on_create(resource: Resource, body: Json, manager: str, given: Any = None) -> list[Entry]:
    """The creator owns what it sent and the defaults of its kind, not what admission adds after that."""
    new, schema = clone(body), kept_schema(resource)
    empty: Json = {}
    if not resource.custom:
        zeros.complete(schema, new)
        empty = zeros.zero(schema)
    paths = _filtered(resource, fieldsets.compare(schema, empty, new).added_or_changed())
    others = _readable(given)
    _release(others, paths)
    return [*others, Entry(manager, "Update", body["apiVersion"], time=now_text(), paths=paths)]


def on_update(resource: Resource, old: Json, new: Json, manager: str, subresource: str, given: Any) -> list[Entry]:
    """Who changes a field owns it; others lose it. `given` is the list as the request left it.

    An object whose list was emptied on purpose is not tracked any more, until somebody applies.
    """
    if given is not None and not any(given) and not subresource:
        return []
    entries = _readable(given if not subresource else None) or _readable(old["metadata"].get("managedFields"))
    if not entries:
        return []
    new, schema = clone(new), kept_schema(resource)
    if not resource.custom:
        zeros.complete(schema, new)
    found = fieldsets.compare(schema, old, new)
    _release(entries, found.added_or_changed() | found.removed)
    when = "" if subresource == "scale" else now_text()
    mine = Entry(manager, "Update", new["apiVersion"], subresource, when)
    mine.paths = _filtered(resource, found.added_or_changed(), subresource)
    if mine.paths:
        for each in entries:
            if each.same(mine):
                each.paths |= mine.paths
                each.time = mine.time
                break
        else:
            entries.append(mine)
    return entries


def _readable(raw: Any) -> list[Entry]:
    try:
        return decode(raw)
    except ApiError:
        return []


def _release(entries: list[Entry], paths: set[Path]) -> None:
    for each in entries:
        each.paths -= paths


def first_apply(resource: Resource, wanted: Json, manager: str) -> list[Entry]:
    """Who makes an object by an apply owns what it says."""
    paths = _filtered(resource, fieldsets.members(resource.schema, wanted))
    return [Entry(manager, "Apply", resource.api_version, time=now_text(), paths=paths)]


def on_apply(resource: Resource, live: Json, wanted: Json, mine: Entry, force: bool) -> tuple[Json, list[Entry]]:
    """What becomes of an object by an apply, and who owns what then. Raises 409 for fields of others."""
    schema = resource.schema
    entries = decode(live["metadata"].get("managedFields"))
    live = {**live, "metadata": {key: each for key, each in live["metadata"].items() if key != "managedFields"}}
    if not entries:
        entries = [Entry(BEFORE, "Update", resource.api_version, time=now_text())]
        empty = {} if resource.custom else zeros.zero(schema)
        entries[0].paths = _filtered(resource, fieldsets.compare(schema, empty, live).added_or_changed())
    before = next((each for each in entries if each.same(mine)), None)
    others = [each for each in entries if each is not before]
    mine.paths = _filtered(resource, fieldsets.members(schema, wanted), mine.subresource)
    new: Json = fieldsets.merge(schema, live, wanted)
    if before is not None:
        new = _pruned(schema, new, before.paths, [mine.paths, *(each.paths for each in others)])
    found = fieldsets.compare(schema, live, new)
    touched = found.added_or_changed()
    clashes = [(each, path) for each in others for path in sorted(touched & each.paths)]
    if clashes and not force:
        raise apply_conflict([(each.manager, each.described(), fieldsets.shown(path)) for each, path in clashes])
    _release(others, touched | found.removed)
    if before is not None and new == live:
        mine.time = before.time
    return new, [*others, mine]


def _pruned(schema: Schema, merged: Json, last: set[Path], owned: list[set[Path]]) -> Json:
    """Without what the applier had claimed before and nobody claims now."""
    last = fieldsets.with_structs(schema, last)
    claimed = fieldsets.with_structs(schema, set().union(*owned))
    have = fieldsets.with_structs(schema, fieldsets.members(schema, merged))
    left = fieldsets.with_structs(schema, fieldsets.members(schema, _removed(schema, merged, last)))
    return _removed(schema, merged, (have - left - claimed) & last)


def _removed(schema: Schema, value: Json, paths: set[Path]) -> Json:
    found = fieldsets.remove(schema, value, paths)
    return {} if found is fieldsets.ABSENT else dict(found)
