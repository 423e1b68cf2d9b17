"""How namespaces and CRDs come to their end: what is in them goes first, and conditions say what holds it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from onward.local.api import crds
from onward.local.api.clock import now_text
from onward.local.api.deletion import delete, drop_finalizer
from onward.local.api.registry import Resource
from onward.local.api.request import DeleteOptions, Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.settings import MANAGER
from onward.local.api.store import Item, clone

Json = dict[str, Any]
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
FURNITURE = (("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt"))
"""What every namespace has, and gets again when it is deleted."""
OPTIONS = WriteOptions(field_manager=MANAGER)
# (type, reason and message while there is nothing to complain about)
FINE = (
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    ("NamespaceDeletionContentFailure", "ContentDeleted",
     "All content successfully deleted, may be waiting on finalization"),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
)  # fmt: skip


async def namespace(api: Api, target: Target, item: Item) -> None:
    """Furnishes a new namespace, empties one that ends: its pods first, the rest when they are gone."""
    if not item.body["metadata"].get("deletionTimestamp"):
        await _furnish(api, target.name)
        return
    pods = await _empty(api, target.name, lambda kind: kind == "pods")
    left = [] if pods else await _empty(api, target.name, lambda kind: kind != "pods")
    await api.change(Target(target.resource, "", target.name, "status"), lambda current: _told(current, left), OPTIONS)
    if pods or left:
        return

    def finalize(current: Item) -> Json:
        new = clone(current.body)
        spec = new.get("spec") or {}
        new["spec"] = {**spec, "finalizers": [each for each in spec.get("finalizers") or () if each != "kubernetes"]}
        return new

    await api.change(Target(target.resource, "", target.name, "finalize"), finalize, OPTIONS)


async def _empty(api: Api, name: str, wanted: Callable[[str], bool]) -> list[tuple[Resource, Json]]:
    """Deletes what is in a namespace, and returns what is still there."""
    left: list[tuple[Resource, Json]] = []
    for kind in [each for each in api.store.objects if wanted(each)]:
        resource = api.registry.stored(kind)
        if resource is None:
            continue
        for key in [key for key in api.store.objects[kind] if key[0] == name]:
            found = api.store.get((kind, *key))
            if found is not None and not found.body["metadata"].get("deletionTimestamp"):
                await delete(api, Target(resource, *key, ""), DeleteOptions(propagation="Background"))
        left += [(resource, found.body) for key, found in api.store.all(kind) if key[0] == name]
    return left


def _told(current: Item, left: list[tuple[Resource, Json]]) -> Json:
    """The namespace with conditions that say what is left."""
    new, now = clone(current.body), now_text()
    kinds = Counter(f"{resource.plural}.{resource.group}" for resource, _ in left)
    held = Counter(name for _, body in left for name in body["metadata"].get("finalizers") or ())
    remaining = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(kinds.items()))
    holding = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(held.items()))
    trouble = {}
    if remaining:
        trouble["NamespaceContentRemaining"] = ("SomeResourcesRemain", f"Some resources are remaining: {remaining}")
    if holding:
        text = f"Some content in the namespace has finalizers remaining: {holding}"
        trouble["NamespaceFinalizersRemaining"] = ("SomeFinalizersRemain", text)
    status = new.setdefault("status", {})
    before = {each["type"]: each for each in status.get("conditions") or ()}
    status["conditions"] = []
    for kind, *fine in FINE:
        value = "True" if kind in trouble else "False"
        reason, message = trouble.get(kind, fine)
        same = before.get(kind, {}).get("status") == value
        since = before[kind]["lastTransitionTime"] if same else now
        status["conditions"].append(
            {"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message}
        )
    return new


async def _furnish(api: Api, name: str) -> None:
    """What every namespace has: its default service account and the CA that pods need to trust this server."""
    authority = api.settings.state / "ca.crt"
    objects: list[tuple[str, Json]] = [("serviceaccounts", {"metadata": {"name": "default"}})]
    if authority.exists():
        data = {"ca.crt": authority.read_text(encoding="utf-8")}
        objects.append(("configmaps", {"metadata": {"name": "kube-root-ca.crt"}, "data": data}))
    for plural, body in objects:
        resource = api.registry.find("", "v1", plural)
        if resource is not None and api.store.get((plural, name, body["metadata"]["name"])) is None:
            await api.create(Target(resource, name, "", ""), body, OPTIONS)


async def definition(api: Api, target: Target, item: Item) -> None:
    """A CRD goes when its objects have gone; it serves them until then, so that finalizers can be removed."""

    def terminating(current: Item) -> Json:
        new = clone(current.body)
        crds.set_condition(new, "Terminating", True, "InstanceDeletionInProgress",
                           "CustomResource deletion is in progress")  # fmt: skip
        return new

    await api.change(Target(target.resource, "", target.name, "status"), terminating, OPTIONS)
    resource = api.registry.stored(target.name)
    for (namespace_, name), found in list(api.store.all(target.name)):
        if resource is not None and not found.body["metadata"].get("deletionTimestamp"):
            await delete(api, Target(resource, namespace_, name, ""), DeleteOptions())
    if not api.store.objects.get(target.name):
        await drop_finalizer(api, target, CLEANUP)
