"""Deleting: preconditions, grace periods, finalizers and propagation, one object at a time.

Who depends on the object is none of this module's business; `garbage.py` follows.
"""

from __future__ import annotations

from typing import Any

from onward.local.api import crds
from onward.local.api.clock import now, now_text, parse
from onward.local.api.request import DeleteOptions, Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.settings import MANAGER
from onward.local.api.status import conflict, forbidden, success
from onward.local.api.store import Item, clone

Json = dict[str, Any]
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
# Kinds whose delete answers with the object itself, as it last was.
SHOWN_WHEN_GONE = {"pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims", "podtemplates",
                   "resourcequotas", "storageclasses.storage.k8s.io"}  # fmt: skip
# Kinds of old times: what depends on them stays, unless the request says otherwise.
ORPHANED = ("replicationcontrollers", "jobs.batch")
KEPT_NAMESPACES = ("default", "kube-system", "kube-public")


async def delete(api: Api, target: Target, options: DeleteOptions) -> tuple[Item, bool]:
    """Deletes or marks for deletion. Returns what is left to show, and whether the object is gone."""
    resource, key = target.resource, api.key(target)
    async with api.store.lock(key):
        current = api.get(target)
        _preconditions(api, target, current, options)
        if resource.key == "namespaces" and target.name in KEPT_NAMESPACES:
            raise forbidden("", "namespaces", target.name, "this namespace may not be deleted")
        new = clone(current.body)
        orphaned = resource.key in ORPHANED and not {FOREGROUND, ORPHAN} & set(new["metadata"].get("finalizers") or ())
        _propagation(new, options.propagation or ("Orphan" if orphaned else ""))
        grace = _grace(resource.key, new, options.grace)
        if not new["metadata"].get("finalizers") and not grace and resource.key != "namespaces":
            if resource.key == "pods":
                _mark(resource.key, new, 0)
                _raise_generation(new, current.body)
            if options.dry_run:
                return Item(current.rv, new), True
            return await api.store.remove(key, new), True
        _mark(resource.key, new, grace)
        if new == current.body or options.dry_run:
            return current, False
        _raise_generation(new, current.body)
        return await api.store.put(key, new), False


def _preconditions(api: Api, target: Target, current: Item, options: DeleteOptions) -> None:
    resource, meta = target.resource, current.body["metadata"]
    if options.uid and options.uid != meta["uid"]:
        if resource.key == "namespaces":
            why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {meta['uid']}"
            raise conflict("", "namespaces", target.name, why)
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(resource.group, resource.kind, target.name, why)
    if options.version and options.version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in record "
            f"({meta['resourceVersion']}). The object might have been modified"
        )
        raise conflict(resource.group, resource.kind, target.name, why)


def _propagation(new: Json, policy: str) -> None:
    """The policy of the latest request decides which of the two collector's finalizers is there."""
    finalizers = list(new["metadata"].get("finalizers") or ())
    if policy:
        finalizers = [each for each in finalizers if each not in (FOREGROUND, ORPHAN)]
        if policy == "Foreground":
            finalizers.append(FOREGROUND)
        elif policy == "Orphan":
            finalizers.append(ORPHAN)
    _set_finalizers(new, finalizers)


def _set_finalizers(new: Json, finalizers: list[str]) -> None:
    if finalizers:
        new["metadata"]["finalizers"] = finalizers
    else:
        new["metadata"].pop("finalizers", None)


async def drop_finalizer(api: Api, target: Target, name: str) -> None:
    """What it stood for is done."""

    def without(current: Item) -> Json:
        new = clone(current.body)
        _set_finalizers(new, [each for each in new["metadata"].get("finalizers") or () if each != name])
        return new

    await api.change(target, without, WriteOptions(field_manager=MANAGER))


def _grace(kind: str, body: Json, asked: int | None) -> int:
    if kind != "pods":
        return 0
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    return asked if asked is not None else int(spec.get("terminationGracePeriodSeconds", 30))


def _mark(kind: str, new: Json, grace: int) -> None:
    meta = new["metadata"]
    if kind in ("namespaces", crds.KEY):
        meta.setdefault("deletionTimestamp", now_text())
        if kind == "namespaces":
            new.setdefault("status", {})["phase"] = "Terminating"
        else:
            why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
            crds.set_condition(new, "Terminating", True, "InstanceDeletionPending", why)
        return
    marked = parse(meta.get("deletionTimestamp", ""))
    if marked is None:
        meta["deletionTimestamp"] = now_text(grace)
        meta["deletionGracePeriodSeconds"] = grace
    elif grace < meta.get("deletionGracePeriodSeconds", 0):  # a grace period can only become shorter
        if marked > now():
            meta["deletionTimestamp"] = now_text(grace)
        meta["deletionGracePeriodSeconds"] = grace


def _raise_generation(new: Json, old: Json) -> None:
    if (
        new["kind"] != "CustomResourceDefinition"
        and "generation" in new["metadata"]
        and not old["metadata"].get("deletionTimestamp")
    ):
        new["metadata"]["generation"] += 1


def outcome(target: Target, item: Item, gone: bool) -> Json | None:
    """The Status that answers a finished delete; None where the marked object itself is the answer."""
    resource = target.resource
    if not gone or resource.key in SHOWN_WHEN_GONE:
        return None
    details = {
        "name": target.name,
        "group": resource.group,
        "kind": resource.plural,
        "uid": item.body["metadata"]["uid"],
    }
    return success(details={key: value for key, value in details.items() if value})
