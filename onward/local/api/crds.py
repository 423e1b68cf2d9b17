"""Custom resource definitions: from the object a user applies to resources this server serves."""

from __future__ import annotations

from typing import Any

from onward.local.api.clock import now_text
from onward.local.api.registry import Registry, Resource
from onward.local.api.schema import Field, builtin_types, from_json_schema

Json = dict[str, Any]
KEY = "customresourcedefinitions.apiextensions.k8s.io"


def resources(crd: Json) -> list[Resource]:
    """One resource per served version."""
    spec = crd["spec"]
    names = (crd.get("status") or {}).get("acceptedNames") or spec["names"]
    found = []
    for version in spec.get("versions", ()):
        if not version.get("served"):
            continue
        raw = (version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True}
        schema = from_json_schema({"type": "object", **raw}, names["kind"])
        pod = builtin_types().kind("core.Pod").fields
        schema.fields = {**schema.fields, **{key: pod[key] for key in ("apiVersion", "kind", "metadata")}}
        subs = version.get("subresources") or {}
        found.append(
            Resource(
                group=spec["group"],
                version=version["name"],
                kind=names["kind"],
                plural=names["plural"],
                namespaced=spec["scope"] == "Namespaced",
                schema=schema,
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=tuple(sub for sub in ("scale", "status") if sub in subs),
                custom=True,
                singular=names.get("singular") or names["kind"].lower(),
                list_kind=names.get("listKind") or names["kind"] + "List",
                columns=tuple(version.get("additionalPrinterColumns") or ()),
                raw_schema=raw,
                scale_paths=dict(subs.get("scale") or {}),
                selectable=tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or ()),
                warning=version.get("deprecationWarning")
                or f"{spec['group']}/{version['name']} {names['kind']} is deprecated"
                if version.get("deprecated")
                else "",
            )
        )
    return found


def accept(registry: Registry, crd: Json) -> None:
    """Sets the conditions a CRD gets at once here: its names are free, so it is established."""
    spec = crd["spec"]
    taken = _taken(registry, crd)
    if taken:
        set_condition(crd, "NamesAccepted", False, "Conflict", taken)
        set_condition(crd, "Established", False, "NotAccepted", "not all names are accepted")
    else:
        set_condition(crd, "NamesAccepted", True, "NoConflicts", "no conflicts found")
        set_condition(crd, "Established", True, "InitialNamesAccepted", "the initial names have been accepted")
    status = crd["status"]
    status["acceptedNames"] = dict(spec["names"]) if not taken else {"plural": "", "kind": ""}
    stored = list(status.get("storedVersions") or ())
    for version in spec.get("versions", ()):
        if version.get("storage") and version["name"] not in stored:
            stored.append(version["name"])
    status["storedVersions"] = stored


def set_condition(crd: Json, type_: str, good: bool, reason: str, message: str) -> None:
    value = "True" if good else "False"
    status = crd["status"] = dict(crd.get("status") or {})
    conditions = status["conditions"] = list(status.get("conditions") or ())
    at = next((index for index, each in enumerate(conditions) if each["type"] == type_), len(conditions))
    before = conditions[at] if at < len(conditions) else {}
    since = before["lastTransitionTime"] if before.get("status") == value else now_text()
    found = {"type": type_, "status": value, "lastTransitionTime": since, "reason": reason, "message": message}
    conditions[at : at + 1] = [found]


def _taken(registry: Registry, crd: Json) -> str:
    spec = crd["spec"]
    names = spec["names"]
    mine = crd["metadata"]["name"]
    for each in registry.all():
        if each.group != spec["group"] or f"{each.plural}.{each.group}" == mine:
            continue
        if each.kind == names["kind"]:
            return f'"{names["kind"]}" is already in use'
        for short in names.get("shortNames") or ():
            if short in each.short_names or short == each.plural:
                return f'"{short}" is already in use'
    return ""


def established(crd: Json) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


__all__ = ["KEY", "Field", "accept", "established", "resources"]
