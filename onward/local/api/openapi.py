"""OpenAPI v3 (and v2 as JSON), made from the registry: what kubectl's validation, apply, diff and explain read.

Field names, types and merge keys are complete; descriptions of built-in fields are not repeated here. Custom kinds show
their CRD's schema with everything the author wrote.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from aiohttp import web

from onward.local.api import openapi_pb
from onward.local.api.discovery import UNSERVED, VERSION, sub_verbs
from onward.local.api.registry import Registry, Resource
from onward.local.api.schema import Field, Schema, builtin_types
from onward.local.api.status import no_such_path, not_acceptable
from onward.local.api.store import encode

Json = dict[str, Any]
PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
SCALARS: dict[str, Json] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object"},
}
QUERY = {
    "post": ("pretty", "dryRun", "fieldManager", "fieldValidation"),
    "put": ("pretty", "dryRun", "fieldManager", "fieldValidation"),
    "patch": ("pretty", "dryRun", "fieldManager", "fieldValidation", "force"),
    "delete": ("pretty", "dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"),
    "get": ("pretty",),
}
LIST_QUERY = (
    "pretty", "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
PATCH_TYPES = (
    "application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)  # fmt: skip


def model_name(struct: str) -> str:
    group, _, name = struct.partition(".")
    return f"{PACKAGES.get(group, f'io.k8s.api.{group}.v1')}.{name}"


def custom_name(resource: Resource) -> str:
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


class Models:
    """Schemas of one document, collected while references to them are written."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.found: dict[str, Json] = {}

    def reference(self, struct: str) -> str:
        name = model_name(struct)
        if name not in self.found:
            self.found[name] = {}
            self.found[name] = self.object(builtin_types().structs[struct])
        return self.prefix + name

    def object(self, schema: Schema, extra: dict[str, Field] | None = None) -> Json:
        fields = {**(extra or {}), **schema.fields}
        model: Json = {"type": "object", "properties": {key: self.field(each) for key, each in fields.items()}}
        if schema.atomic:
            model["x-kubernetes-map-type"] = "atomic"
        needed = [key for key, each in fields.items() if each.required]
        if needed:
            model["required"] = needed
        return model

    def field(self, field: Field) -> Json:
        shown = self.value(field.schema)
        if field.schema.patch:
            shown["x-kubernetes-patch-strategy"] = ",".join(sorted(field.schema.patch))
        if field.schema.merge_key:
            shown["x-kubernetes-patch-merge-key"] = field.schema.merge_key
        if field.schema.kind == "list":
            shown["x-kubernetes-list-type"] = field.schema.list_type
            if field.schema.keys:
                shown["x-kubernetes-list-map-keys"] = list(field.schema.keys)
        if field.atomic:
            shown["x-kubernetes-map-type"] = "atomic"
        if field.default is not None:
            shown["default"] = int(field.default) if field.default.isdigit() else field.default
        return shown

    def value(self, schema: Schema) -> Json:
        if schema.struct:
            reference = {"$ref": self.reference(schema.struct)}
            return {"allOf": [reference]} if self.prefix.startswith("#/components") else reference
        if schema.kind == "list":
            return {"type": "array", "items": self.value(schema.items or Schema("any"))}
        if schema.kind == "map":
            return {"type": "object", "additionalProperties": self.value(schema.items or Schema("any"))}
        if schema.kind == "intstr":
            if self.prefix.startswith("#/definitions"):
                return {"type": "string", "format": "int-or-string"}
            return {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
        shown = dict(SCALARS[schema.kind])
        if schema.format and schema.kind == "integer":
            shown["format"] = schema.format
        if schema.enum:
            shown["enum"] = list(schema.enum)
        return shown

    def kind(self, resource: Resource) -> str:
        """The model of a top-level kind, marked with its group, version and kind."""
        if resource.custom:
            name, model = custom_name(resource), copy.deepcopy(resource.raw_schema)
            model.setdefault("type", "object")
            strings = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            meta = self.value(builtin_types().structs["meta.ObjectMeta"])
            model["properties"] = {**model.get("properties", {}), **strings, "metadata": meta}
        else:
            name, model = model_name(resource.struct), self.object(resource.schema)
            model["description"] = f"{resource.kind} ({resource.api_version}), as in the Kubernetes API."
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        model["x-kubernetes-group-version-kind"] = [gvk]
        self.found[name] = model
        return self.prefix + name


def _parameter(name: str, form: int) -> Json:
    plain = "boolean" if name in ("force", "watch", "allowWatchBookmarks", "sendInitialEvents") else "string"
    kind = {"type": "integer" if name in ("limit", "timeoutSeconds", "gracePeriodSeconds") else plain}
    return {"name": name, "in": "query", "uniqueItems": True, **(kind if form == 2 else {"schema": kind})}


def _patch_types(resource: Resource) -> tuple[str, ...]:
    return PATCH_TYPES[:3] if resource.custom else PATCH_TYPES


def _operation(resource: Resource, method: str, reference: str, names: tuple[str, ...], action: str, form: int) -> Json:
    gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    body: Json = {"$ref": reference}
    shown: Json = {
        "operationId": f"{action}{resource.group.title().replace('.', '')}{resource.version.title()}{resource.kind}",
        "parameters": [_parameter(name, form) for name in names],
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }
    if form == 2:
        shown["responses"] = {"200": {"description": "OK", "schema": body}}
        if method == "patch":
            shown["consumes"] = list(_patch_types(resource))
        if method in ("post", "put", "patch"):
            shown["parameters"].append({"name": "body", "in": "body", "required": True, "schema": body})
    else:
        shown["responses"] = {"200": {"description": "OK", "content": {"application/json": {"schema": body}}}}
        if method in ("post", "put", "patch"):
            types = _patch_types(resource) if method == "patch" else ("application/json",)
            content = {each: {"schema": {"type": "object"} if method == "patch" else body} for each in types}
            shown["requestBody"] = {"content": content, "required": True}
    return shown


def _paths(resource: Resource, reference: str, form: int) -> Json:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scoped = (
        f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    )

    def operation(method: str, names: tuple[str, ...], action: str) -> Json:
        return _operation(resource, method, reference, names, action, form)

    collection: Json = {}
    if "list" in resource.verbs:
        collection["get"] = operation("get", LIST_QUERY, "list")
    if "create" in resource.verbs:
        collection["post"] = operation("post", QUERY["post"], "post")
    if "deletecollection" in resource.verbs:
        collection["delete"] = operation("delete", QUERY["delete"], "deletecollection")
    paths = {scoped: collection}
    if resource.namespaced and "list" in resource.verbs:
        paths[f"{base}/{resource.plural}"] = {"get": collection["get"]}
    if "get" in resource.verbs:
        methods = ("get", "put", "patch", "delete")
        paths[f"{scoped}/{{name}}"] = {method: operation(method, QUERY[method], method) for method in methods}
    if "status" in resource.subresources and "status" not in UNSERVED:
        written = tuple(
            {"get": "get", "update": "put", "patch": "patch"}[verb] for verb in sub_verbs(resource, "status")
        )
        paths[f"{scoped}/{{name}}/status"] = {method: operation(method, QUERY[method], method) for method in written}
    return paths


class Documents:
    """The documents, made when first asked for and kept until a CRD changes."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.revision = -1
        self.cache: dict[str, bytes] = {}

    def answer(self, request: web.Request, parts: list[str]) -> web.Response:
        if self.revision != self.registry.revision:
            self.cache, self.revision = {}, self.registry.revision
        if parts == ["v2"]:
            accept = request.headers.get("Accept", "*/*")
            if "protobuf" in accept.split(",")[0]:
                return web.Response(body=openapi_pb.document(self.registry), headers={"Content-Type": openapi_pb.TYPE})
            if "json" not in accept and "*/*" not in accept:
                raise not_acceptable(False)
            return self._reply(request, "v2", self._whole)
        if parts == ["v3"]:
            return self._reply(request, "v3", self._index)
        if len(parts) == 3 and parts[:2] == ["v3", "api"]:
            return self._reply(request, "/".join(parts), lambda: self._document("", parts[2]))
        if len(parts) == 4 and parts[:2] == ["v3", "apis"]:
            return self._reply(request, "/".join(parts), lambda: self._document(parts[2], parts[3]))
        raise no_such_path()

    def _reply(self, request: web.Request, name: str, make: Any) -> web.Response:
        if name not in self.cache:
            self.cache[name] = encode(make())
        data = self.cache[name]
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        response = web.Response(body=data, headers={"Content-Type": "application/json", "ETag": tag})
        return response

    def _index(self) -> Json:
        paths = {}
        for group, versions in self.registry.groups().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                stamp = f"{VERSION['gitVersion']}-{self.registry.revision}" if "." in group else VERSION["gitVersion"]
                known = hashlib.sha256(f"{path} {stamp}".encode()).hexdigest().upper()
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={known}"}
        return {"paths": paths}

    def _document(self, group: str, version: str) -> Json:
        found = [each for each in self.registry.all() if (each.group, each.version) == (group, version)]
        if not found:
            raise no_such_path()
        models, paths = Models("#/components/schemas/"), {}
        for each in found:
            paths.update(_paths(each, models.kind(each), 3))
        info = {"title": "onward", "version": VERSION["gitVersion"]}
        return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": models.found}}

    def _whole(self) -> Json:
        models, paths = Models("#/definitions/"), {}
        for each in self.registry.all():
            paths.update(_paths(each, models.kind(each), 2))
        info = {"title": "onward", "version": VERSION["gitVersion"]}
        return {"swagger": "2.0", "info": info, "paths": paths, "definitions": models.found}
