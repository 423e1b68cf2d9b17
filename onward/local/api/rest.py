"""The verbs: create, get, list, update, patch, delete, with the rules that hold for every kind.

Each write is: take the object's lock, read what is durable, compute the new object (pure functions of other modules),
write, answer. Kinds differ only in `defaults`, `validation` and `lifecycle`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from onward.local.api import crds, defaults, definitions, lifecycle, ownership, rules, validation
from onward.local.api.clock import now_text
from onward.local.api.decoding import TypeMismatch, conform, handled_as
from onward.local.api.registry import Registry, Resource
from onward.local.api.request import Target, WriteOptions, number, version_of
from onward.local.api.selectors import Match, build
from onward.local.api.settings import Settings
from onward.local.api.status import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    invalid,
    not_found,
)
from onward.local.api.store import Item, Key, Store, clone
from onward.local.api.views import stored_form

Json = dict[str, Any]
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


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

    def get(self, target: Target) -> Item:
        item = self.store.get(self.key(target))
        if item is None:
            raise not_found(target.resource.group, target.resource.plural, target.name)
        return item

    def selector(self, target: Target, query: Mapping[str, str]) -> Match | None:
        resource = target.resource
        return build(query.get("labelSelector", ""), query.get("fieldSelector", ""), resource.key, resource.selectable)

    def list(self, target: Target, query: Mapping[str, str]) -> Page:
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
        elif how and not wanted:
            raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
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

    def decode(self, resource: Resource, body: Any, options: WriteOptions) -> Json:
        """A body as an object of this resource: types checked, unknown fields dropped, warned of or refused."""
        if not isinstance(body, dict):
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: json: cannot unmarshal into Go value of type v1.{resource.kind}"
            )
        kind, version = body.get("kind"), body.get("apiVersion")
        if not kind and not version and resource.custom:
            raise bad_request("Object 'Kind' is missing in the request body")
        if version and version != resource.api_version:
            raise bad_request(
                f"the API version in the data ({str(version)[:100]}) does not match the expected API version "
                f"({resource.api_version})"
            )
        if kind and kind != resource.kind:
            raise bad_request(
                f"the kind in the data ({str(kind)[:100]}) does not match the expected kind ({resource.kind})"
            )
        try:
            clean, unknown = conform(resource.schema, body, resource.custom)
        except TypeMismatch as error:
            raise handled_as(resource.kind, resource.version, str(error)) from None
        if unknown and options.field_validation != "Ignore":
            texts = [f'unknown field "{path}"' for path in unknown]
            if options.field_validation == "Strict":
                raise handled_as(resource.kind, resource.version, "strict decoding error: " + ", ".join(texts))
            options.warnings.extend(texts)
        clean.pop("apiVersion", None), clean.pop("kind", None)
        result: Json = {"apiVersion": resource.api_version, "kind": resource.kind}
        result["metadata"] = clean.pop("metadata", None) or {}
        result.update(clean)
        return result

    # -- writing -------------------------------------------------------------------------------------------------

    def check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get(("namespaces", "", namespace))
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found.body["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            error = forbidden(resource.group, resource.plural, name, why)
            error.details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise error

    def prepare_new(self, target: Target, body: Json, options: WriteOptions) -> Json:
        """Server-set metadata, defaults and validation of an object to be created."""
        resource, meta = target.resource, body["metadata"]
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
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
        for gone in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta.pop(gone, None)
        if not meta.get("name") and meta.get("generateName"):
            ending = "".join(secrets.choice(SUFFIX) for _ in range(5))
            meta["name"] = meta["generateName"][:58] + ending
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now_text()
        lifecycle.on_create(resource, body)
        defaults.apply(self.store, self.settings, resource, body)
        causes = validation.create(self.store, self.registry, resource, body)
        if causes:
            shown = str(meta.get("name") or meta.get("generateName") or "")
            raise invalid(resource.group, resource.kind, shown[:300], causes)
        if resource.key == crds.KEY:
            crds.accept(self.registry, body)
            if definitions.has_rules(body["spec"]) and rules.library() is None:
                options.warnings.append(rules.MISSING)
        return body

    async def create(self, target: Target, body: Any, options: WriteOptions) -> Item:
        resource = target.resource
        decoded = self.decode(resource, body, options)
        name = str(decoded["metadata"].get("name") or "")
        if resource.namespaced and not target.namespace:
            raise bad_request("an empty namespace may not be set during creation")
        self.check_namespace(resource, target.namespace, name)
        decoded["metadata"].pop("managedFields", None)
        form = stored_form(resource, decoded)
        for attempt in range(8):
            new = self.prepare_new(target, clone(form), options)
            key = (resource.key, target.namespace, new["metadata"]["name"])
            async with self.store.lock(key):
                if self.store.get(key) is None:
                    ownership.on_create(resource, new, options.field_manager, form)
                    if resource.warning and resource.key not in self.settings.controllers:
                        options.warnings.append(resource.warning)
                    return await self.commit(key, new, options)
            if name or attempt == 7:
                break
        raise already_exists(resource.group, resource.plural, new["metadata"]["name"])

    async def commit(self, key: Key, new: Json, options: WriteOptions) -> Item:
        if options.dry_run:
            new["metadata"].pop("resourceVersion", None)
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
            raise bad_request("the namespace of the object does not match the namespace on the request")
        if meta.get("uid", was["uid"]) != was["uid"]:
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {was['uid']}"
            raise conflict(resource.group, resource.plural, target.name, why)
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
        managed = meta.pop("managedFields", was.get("managedFields"))
        defaults.apply(self.store, self.settings, resource, new, old)
        causes = validation.update(self.store, self.registry, resource, new, old, target.subresource)
        if causes:
            raise invalid(resource.group, resource.kind, target.name, causes)
        if resource.key == crds.KEY and not target.subresource:
            crds.accept(self.registry, new)
        lifecycle.bump_generation(resource, old, new)
        ownership.on_update(resource, old, new, options.field_manager, target.subresource, managed, operation)
        return None if new == old else new


def _encode_continue(version: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *key])).decode()


def _decode_continue(text: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = msgspec.json.decode(base64.urlsafe_b64decode(text), type=tuple[int, str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise bad_request(f'continue key is not valid: invalid value: "{text[:60]}"') from None
    return version, (namespace, name)
