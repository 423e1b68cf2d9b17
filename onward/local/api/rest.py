"""The verbs: create, get, list, update, patch, delete, with the rules that hold for every kind.

Each write is: take the object's lock, read what is durable, compute the new object (pure functions of other modules),
write, answer. Kinds differ only in `defaults`, `validation` and `lifecycle`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from onward.local.api import (
    crds,
    defaults,
    definitions,
    lifecycle,
    ownership,
    pods,
    rules,
    services,
    validation,
    zeros,
)
from onward.local.api.clock import now_text
from onward.local.api.decoding import TypeMismatch, conform, handled_as
from onward.local.api.ownership import Entry
from onward.local.api.registry import Registry, Resource
from onward.local.api.request import Target, WriteOptions, check_list, number, version_of
from onward.local.api.selectors import Match, build
from onward.local.api.settings import Settings
from onward.local.api.status import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    internal,
    invalid,
    not_found,
    wrong,
)
from onward.local.api.store import Item, Key, Store, clone
from onward.local.api.views import kept_schema, stored_form

Json = dict[str, Any]
Owners = Callable[[Json, Any], Sequence[Entry]]
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
# Kinds that an update makes where they are not there.
MADE_BY_UPDATE = {
    "endpoints", "events", "leases.coordination.k8s.io", "limitranges", "services",
    "clusterrolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io",
}  # fmt: skip
# Kinds that are only updated by who says which version it has seen; custom kinds are of that sort, too.
VERSION_NEEDED = {crds.KEY, "leases.coordination.k8s.io", "poddisruptionbudgets.policy"}


@dataclass
class Page:
    """A list: items as stored, and what its metadata says."""

    items: list[Item]
    version: int
    token: str = ""
    remaining: int | None = None


@dataclass
class Api:
    """Everything the handlers share."""

    settings: Settings
    store: Store
    registry: Registry

    # -- reading -------------------------------------------------------------------------------------------------

    def key(self, target: Target) -> Key:
        return (target.resource.key, target.namespace, target.name)

    def get(self, target: Target, version: str = "") -> Item:
        self.not_in_future(version_of(version))
        item = self.store.get(self.key(target))
        if item is None:
            raise not_found(target.resource.group, target.resource.plural, target.name)
        return item

    def selector(self, target: Target, query: Mapping[str, str]) -> Match | None:
        fields = query.get("fieldSelector", "")
        if target.name:
            fields = f"{fields},metadata.name={target.name}"
        return build(query.get("labelSelector", ""), fields, target.resource)

    def list(self, target: Target, query: Mapping[str, str]) -> Page:
        check_list(query, watch=False)
        match = self.selector(target, query)
        limit = number(query, "limit")
        wanted, how = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        version, start = self.store.rv, None
        objects = self.store.objects.get(target.resource.key, {})
        if query.get("continue"):
            version, start = _decode_continue(query["continue"])
            past = self.store.at(target.resource.key, version)
            if past is None:
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a "
                    "new list without the continue parameter."
                )
            objects = past
        elif wanted:
            self.not_in_future(version_of(wanted))
            if how == "Exact":
                past = self.store.at(target.resource.key, version_of(wanted))
                if past is None:
                    raise expired(f"The resourceVersion for the provided list is too old: {wanted}")
                objects, version = past, version_of(wanted)
        namespace = target.namespace
        keys = sorted(key for key in objects if not namespace or key[0] == namespace)
        if start is not None:
            keys = [key for key in keys if key > start]
        items: list[Item] = []
        for index, key in enumerate(keys):
            item = objects[key]
            if match is None or match(item.body):
                items.append(item)
                if limit and len(items) == limit and index + 1 < len(keys):
                    left = len(keys) - index - 1
                    return Page(items, version, _encode_continue(version, key), left if match is None else None)
        return Page(items, version)

    def not_in_future(self, version: int) -> None:
        if version > self.store.rv:
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            text = f"Too large resource version: {version}, current: {self.store.rv}"
            raise ApiError(504, "Timeout", f"Timeout: {text}", {"causes": causes, "retryAfterSeconds": 1})

    # -- decoding ------------------------------------------------------------------------------------------------

    def decode(self, resource: Resource, body: Any, options: WriteOptions, patch: str = "") -> Json:
        """A body as an object of this resource: types checked, unknown fields dropped, warned of or refused.

        Where it came about by a patch, what is wrong with it is what is wrong with the patch.
        """
        try:
            clean, complaints = self._clean(resource, body)
            if complaints and options.field_validation == "Strict":
                raise TypeMismatch("strict decoding error: " + ", ".join(complaints), "")
        except TypeMismatch as error:
            if patch:
                raise invalid("", "", "", [wrong("patch", patch, str(error))]) from None
            named = body.get("kind") if isinstance(body.get("kind"), str) else ""
            raise handled_as(resource, named or resource.kind, str(error)) from None
        if options.field_validation != "Ignore":
            options.warnings.extend(complaints)
        clean.pop("apiVersion", None), clean.pop("kind", None)
        result: Json = {"apiVersion": resource.api_version, "kind": resource.kind}
        result["metadata"] = clean.pop("metadata", None) or {}
        result.update(clean)
        return result

    def _clean(self, resource: Resource, body: Json) -> tuple[Json, Sequence[str]]:
        kind, version = body.get("kind"), body.get("apiVersion")
        if resource.custom:
            _check_custom(resource, kind, version, body.get("metadata"))
        elif (kind and kind != resource.kind) or (version and version != resource.api_version):
            group, _, number = str(version or resource.api_version).rpartition("/")
            if (group, number, kind or resource.kind) not in self.registry.by_kind:
                text = f'no kind "{str(kind or resource.kind)[:100]}" is registered for version '
                raise TypeMismatch(text + f'"{str(version or resource.api_version)[:100]}"', "")
            if version and version != resource.api_version:
                raise bad_request(
                    f"the API version in the data ({str(version)[:100]}) does not match the expected API version "
                    f"({resource.api_version})"
                )
            raise TypeMismatch(f"converting (v1.{kind}) to (core.{resource.kind}): unknown conversion", "")
        if not resource.custom:
            return conform(resource.schema, body)
        try:
            clean, complaints = conform(resource.schema, body, lenient=True)
        except TypeMismatch as error:
            raise TypeMismatch(str(error).replace("ObjectMeta.metadata.", "ObjectMeta."), error.path) from None
        return clean, sorted(complaints)

    # -- writing -------------------------------------------------------------------------------------------------

    def check_place(self, resource: Resource, namespace: str, name: str) -> None:
        """Nothing is made in a namespace that is not there or ends, nor of a custom kind that ends."""
        if resource.custom:
            definition = self.store.get((crds.KEY, "", resource.key))
            if definition is not None and definition.body["metadata"].get("deletionTimestamp"):
                why = "create not allowed while custom resource definition is terminating"
                raise forbidden(resource.group, resource.plural, name, why)
        if not resource.namespaced:
            return
        found = self.store.get(("namespaces", "", namespace))
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found.body["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            text = f"namespace {namespace} is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": text, "field": "metadata.namespace"}
            raise forbidden(resource.group, resource.plural, name, why, [cause])

    def prepare_new(
        self, target: Target, body: Json, options: WriteOptions, owners: Owners, by_update: bool = False
    ) -> Json:
        """Server-set metadata, defaults and validation of an object to be created."""
        resource, meta = target.resource, body["metadata"]
        if meta.pop("resourceVersion", "") and not by_update:
            raise internal("resourceVersion should not be set on objects to be created")
        if target.namespace and meta.get("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if target.name and meta.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({meta.get('name')}) does not match the name on the URL ({target.name})"
            )
        if target.namespace:
            meta["namespace"] = target.namespace
        elif not resource.namespaced:
            meta.pop("namespace", None)
        for gone in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(gone, None)
        if not meta.get("name") and meta.get("generateName"):
            ending = "".join(secrets.choice(SUFFIX) for _ in range(5))
            meta["name"] = meta["generateName"][:58] + ending
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now_text()
        given = meta.pop("managedFields", None)
        defaults.fill(resource, body)
        entries = owners(body, given)
        lifecycle.on_create(resource, body)
        defaults.admit(self.store, self.settings, resource, body)
        causes = validation.create(self.store, self.registry, resource, body)
        if causes:
            shown = str(meta.get("name") or meta.get("generateName") or "")
            raise invalid(resource.group, resource.kind, shown[:300], causes)
        if resource.key == "pods":
            options.warnings.extend(pods.warnings(body))
        if resource.key == "services":
            options.warnings.extend(services.warnings(body))
        if resource.key == crds.KEY:
            crds.accept(self.registry, body)
            if definitions.has_rules(body["spec"]) and rules.library() is None:
                options.warnings.append(rules.MISSING)
        zeros.complete(kept_schema(resource), body)
        ownership.store(body, entries)
        return body

    async def create(self, target: Target, body: Any, options: WriteOptions, by_update: bool = False) -> Item:
        resource = target.resource
        decoded = self.decode(resource, body, options)
        name = str(decoded["metadata"].get("name") or "")
        self.check_place(resource, target.namespace, name)
        form = stored_form(resource, decoded)

        def owners(body: Json, given: Any) -> Sequence[Entry]:
            return ownership.on_create(resource, body, options.field_manager, given)

        for attempt in range(8):
            new = self.prepare_new(target, clone(form), options, owners, by_update)
            key = (resource.key, target.namespace, new["metadata"]["name"])
            async with self.store.lock(key):
                if self.store.get(key) is None:
                    if resource.warning and resource.key not in self.settings.controllers:
                        options.warnings.append(resource.warning)
                    return await self.commit(key, new, options)
            if name or attempt == 7:
                break
        raise already_exists(resource.group, resource.plural, new["metadata"]["name"])

    async def update(self, target: Target, body: Any, options: WriteOptions) -> tuple[Item, bool]:
        """PUT: the updated object, and whether it was made by it."""
        resource = target.resource
        wanted = self.decode(resource, body, options)
        name = wanted["metadata"].get("name")
        if name != target.name:
            raise bad_request(
                f"the name of the object ({str(name)[:253]}) does not match the name on the URL ({target.name})"
                if name else
                f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
            )  # fmt: skip
        current, uid = self.store.get(self.key(target)), wanted["metadata"].get("uid")
        known = current.body["metadata"]["uid"] if current is not None else uid
        if current is None and resource.key in MADE_BY_UPDATE and not target.subresource:
            return await self.create(Target(resource, target.namespace, "", ""), body, options, True), True
        if uid and uid != known:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}"
            raise conflict(resource.group, resource.plural, target.name, why)

        def compute(current: Item) -> Json:
            if not wanted["metadata"].get("resourceVersion") and (resource.custom or resource.key in VERSION_NEEDED):
                cause = wrong("metadata.resourceVersion", 0, "must be specified for an update")
                raise invalid(resource.group, resource.plural, target.name, [cause])
            return wanted

        return await self.change(target, compute, options), False

    async def commit(self, key: Key, new: Json, options: WriteOptions) -> Item:
        if options.dry_run:
            return Item(0, new)
        return await self.store.put(key, new)

    async def change(
        self,
        target: Target,
        compute: Callable[[Item], Json],
        options: WriteOptions,
        operation: str = "Update",
    ) -> Item:
        """Update and patch: `compute` turns what is stored into what is wanted (a full, decoded object)."""
        key = self.key(target)
        async with self.store.lock(key):
            current = self.get(target)
            wanted = compute(current)
            new = self.prepare_change(target, current, wanted, options, operation)
            if new is None:
                return current
            if lifecycle.finished(new) and not options.dry_run:
                return await self.store.remove(key, new)
            return await self.commit(key, new, options)

    def prepare_change(
        self, target: Target, current: Item, wanted: Json, options: WriteOptions, operation: str
    ) -> Json | None:
        """The object to write, or None when nothing changes."""
        resource, old = target.resource, current.body
        wanted = stored_form(resource, wanted)
        meta, was = wanted["metadata"], old["metadata"]
        if meta.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({str(meta.get('name'))[:253]}) does not match the name on the URL "
                f"({target.name})"
            )
        if meta.get("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if meta.get("uid", was["uid"]) != was["uid"]:
            cause = wrong("metadata.uid", meta["uid"], "field is immutable")
            raise invalid(resource.group, resource.kind, target.name, [cause])
        if meta.get("resourceVersion") and meta["resourceVersion"] != was["resourceVersion"]:
            raise conflict(resource.group, resource.plural, target.name)
        new = lifecycle.merge_update(resource, old, wanted, target.subresource)
        meta = new["metadata"]
        for kept in (
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "generateName",
            "selfLink",
            "resourceVersion",
        ):
            if kept in was:
                meta[kept] = was[kept]
            else:
                meta.pop(kept, None)
        managed = meta.pop("managedFields", None)
        defaults.fill(resource, new)
        if operation == "Update":
            entries = ownership.on_update(resource, old, new, options.field_manager, target.subresource, managed)
            ownership.store(new, entries)
        elif managed is not None:
            meta["managedFields"] = managed
        defaults.admit(self.store, self.settings, resource, new, old)
        causes = validation.update(self.store, self.registry, resource, new, old, target.subresource)
        if causes:
            raise invalid(resource.group, resource.kind, target.name, causes)
        if resource.key == crds.KEY and not target.subresource:
            crds.accept(self.registry, new)
        if operation in ("Update", "Apply"):
            lifecycle.bump_generation(resource, old, new)
        zeros.complete(kept_schema(resource), new)
        return None if new == old else new


def _check_custom(resource: Resource, kind: Any, version: Any, meta: Any) -> None:
    if not kind:
        why = "Object 'Kind' is missing in the request body"
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): {why}")
    if not version:
        raise bad_request("Object 'apiVersion' is missing in 'object has no apiVersion field'")
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({str(version)[:100]}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if kind != resource.kind:
        cause = wrong("kind", str(kind)[:100], f"must be {resource.kind}")
        name = str(meta.get("name", ""))[:253] if isinstance(meta, dict) else ""
        raise invalid(resource.group, str(kind)[:100], name, [cause])


def _encode_continue(version: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *key])).decode()


def _decode_continue(text: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = msgspec.json.decode(base64.urlsafe_b64decode(text), type=tuple[int, str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise bad_request("invalid continue token: continue key is not valid") from None
    return version, (namespace, name)
