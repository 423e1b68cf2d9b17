"""managedFields: who owns which field, after every create, update and server-side apply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onward.local.api import fieldsets
from onward.local.api.clock import now_text
from onward.local.api.fieldsets import Leaves, Path
from onward.local.api.lifecycle import has_status
from onward.local.api.registry import Resource
from onward.local.api.status import bad_request

Json = dict[str, Any]
MAX_UPDATERS = 10
ANCIENT = "ancient-changes"
# Fields nobody owns: the server writes them.
STRIPPED = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
            "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}  # fmt: skip


# What a stock cluster's admission plugins set in a new pod.
ADMITTED = ("serviceAccountName", "serviceAccount", "priority", "preemptionPolicy", "priorityClassName", "tolerations")


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

    def encode(self) -> Json:
        shown: Json = {
            "manager": self.manager, "operation": self.operation, "apiVersion": self.api_version, "time": self.time,
            "fieldsType": "FieldsV1", "fieldsV1": fieldsets.write(self.paths),
        }  # fmt: skip
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
                str(each.get("subresource", "")), str(each.get("time") or now_text()),
                fieldsets.read(each.get("fieldsV1") or {}),
            )
        )  # fmt: skip
    return found


def owned(resource: Resource, body: Json) -> Leaves:
    """The leaves of an object that can be owned."""
    found = fieldsets.leaves(resource.schema, {k: v for k, v in body.items() if k not in ("apiVersion", "kind")})
    return {
        path: value
        for path, value in found.items()
        if not (path[0] == "f:metadata" and (len(path) < 2 or path[1][2:] in STRIPPED))
    }


def store(body: Json, entries: list[Entry]) -> None:
    kept = [each for each in entries if each.paths]
    updates = [each for each in kept if each.operation == "Update" and each.manager != ANCIENT]
    if len(updates) > MAX_UPDATERS:
        old = sorted(updates, key=lambda each: each.time)[: len(updates) - MAX_UPDATERS]
        ancient = next((each for each in kept if each.manager == ANCIENT), None)
        if ancient is None:
            ancient = Entry(ANCIENT, "Update", old[0].api_version, time=old[0].time)
            kept.append(ancient)
        for each in old:
            ancient.paths |= each.paths
            kept.remove(each)
    if kept:
        body["metadata"]["managedFields"] = [each.encode() for each in kept]
    else:
        body["metadata"].pop("managedFields", None)


def on_create(resource: Resource, body: Json, manager: str, sent: Json) -> None:
    """The creator owns what it sent and the defaults of its kind, not what admission added, nor the status."""
    said = sent.get("spec") or {}
    added = {f"f:{key}" for key in ADMITTED if key not in said} if resource.key == "pods" else set()
    paths = {
        path
        for path in owned(resource, body)
        if not (path[0] == "f:spec" and len(path) > 1 and path[1] in added)
        and not (path[0] == "f:status" and has_status(resource))
    }
    entry = Entry(manager, "Update", body["apiVersion"], time=now_text(), paths=paths)
    body["metadata"].pop("managedFields", None)
    store(body, [entry])


def on_update(
    resource: Resource, old: Json, new: Json, manager: str, subresource: str, given: Any, operation: str
) -> None:
    """Who changes a field owns it; others lose it. `given` is the list as the request left it."""
    if operation == "Apply":
        if given:
            new["metadata"]["managedFields"] = given
        return
    entries = decode(given)
    reset = given is not None and not entries and bool(old["metadata"].get("managedFields"))
    before, after = owned(resource, old), owned(resource, new)
    missing = object()
    changed = {path for path, value in after.items() if before.get(path, missing) != value}
    gone = {path for path in before if path not in after}
    sub = subresource if subresource in ("status", "scale") else ""
    mine = Entry(manager, "Update", new["apiVersion"], sub, now_text())
    if (changed or gone) and not reset:
        for each in entries:
            if each.same(mine):
                if changed - each.paths or gone & each.paths:
                    each.time = mine.time
                each.paths = (each.paths | changed) - gone
                break
        else:
            mine.paths = changed
            entries.append(mine)
        for each in entries:
            if not each.same(mine):
                each.paths -= changed | gone
    store(new, entries)
