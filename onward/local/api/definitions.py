"""Validation of CRDs themselves: names, versions, and that every schema is structural."""

from __future__ import annotations

import re
from typing import Any

from onward.local.api import jsonpath, regexps, rules, structural
from onward.local.api.names import label_1035_problem
from onward.local.api.status import Cause, not_allowed, required, unsupported, wrong

Json = dict[str, Any]
PROTECTED = re.compile(r"(?:.*\.)?(?:k8s\.io|kubernetes\.io)")
APPROVAL = "api-approved.kubernetes.io"
APPROVAL_PAGE = "https://github.com/kubernetes/enhancements/pull/1111"
FORBIDDEN = ("$ref", "$schema", "id", "definitions", "dependencies", "patternProperties", "additionalItems")
TYPES = ("object", "array", "string", "integer", "number", "boolean")


def check(crd: Json) -> list[Cause]:
    """All problems of a CRD."""
    causes: list[Cause] = []
    spec, name = crd.get("spec") or {}, crd["metadata"].get("name", "")
    group, names = spec.get("group", ""), spec.get("names") or {}
    if not group:
        causes.append(required("spec.group"))
    elif "." not in group:
        causes.append(wrong("spec.group", group, "should be a domain with at least one dot"))
    wanted = f"{names.get('plural', '')}.{group}"
    if name != wanted:
        causes.append(wrong("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if PROTECTED.fullmatch(group) and not (crd["metadata"].get("annotations") or {}).get(APPROVAL):
        why = f'protected groups must have approval annotation "{APPROVAL}", see {APPROVAL_PAGE}'
        causes.append(required(f"metadata.annotations[{APPROVAL}]", why))
    causes += _names(names)
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        value = spec.get("scope")
        field = "spec.scope"
        causes.append(unsupported(field, value, ["Cluster", "Namespaced"]) if value else required(field))
    if spec.get("preserveUnknownFields"):
        why = "must be false in order to use defaults and structural schemas; set x-kubernetes-preserve-unknown-fields"
        causes.append(wrong("spec.preserveUnknownFields", True, why))
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        why = "conversion webhooks are not supported by onward's API server; use strategy None"
        causes.append(not_allowed("spec.conversion.strategy", why))
    _versions(spec.get("versions") or [], causes)
    return causes


def _names(names: Json) -> list[Cause]:
    causes = [required(f"spec.names.{key}") for key in ("plural", "singular", "kind", "listKind") if not names.get(key)]
    lower = [(key, names[key]) for key in ("plural", "singular") if names.get(key)]
    for group in ("shortNames", "categories"):
        lower += [(f"{group}[{index}]", each) for index, each in enumerate(names.get(group) or ())]
    for key, value in lower:
        bad = label_1035_problem(value)
        if bad:
            causes.append(wrong(f"spec.names.{key}", value, bad))
    for key in ("kind", "listKind"):
        bad = label_1035_problem(names[key].lower()) if names.get(key) else ""
        if bad:
            why = f"may have mixed case, but should otherwise match: {bad}"
            causes.append(wrong(f"spec.names.{key}", names[key], why))
    return causes


def _versions(versions: list[Json], causes: list[Cause]) -> None:
    if sum(bool(each.get("storage")) for each in versions) != 1:
        named = [each.get("name", "") for each in versions] or None
        causes.append(wrong("spec.versions", named, "must have exactly one version marked as storage version"))
    seen: set[str] = set()
    for index, each in enumerate(versions):
        where = f"spec.versions[{index}]"
        name = each.get("name", "")
        bad = label_1035_problem(name)
        if bad:
            causes.append(wrong(f"{where}.name", name, bad))
        if name in seen:
            causes.append(wrong(f"{where}.name", name, "must be unique"))
        seen.add(name)
        schema = (each.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            causes.append(required(f"{where}.schema.openAPIV3Schema"))
            continue
        # The schema of an only version is everybody's, and complained about at the place for that.
        place = f"{where}.schema.openAPIV3Schema" if len(versions) > 1 else "spec.validation.openAPIV3Schema"
        misshapen = _shape(schema, place, 0)
        causes.extend(misshapen)
        if not misshapen:
            _schema(schema, place, causes, root=True)
        for at, column in enumerate(each.get("additionalPrinterColumns") or ()):
            _column(column, f"{where}.additionalPrinterColumns[{at}]", causes)


SHAPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("type", "format", "pattern", "title", "description"), (str,)),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), (str,)),
    **dict.fromkeys(("properties", "items", "not"), (dict,)),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), (list,)),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf", "x-kubernetes-validations"), (list,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), (int,)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum", "nullable", "uniqueItems"), (bool,)),
    **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"), (bool,)),
    "x-kubernetes-embedded-resource": (bool,),
    "additionalProperties": (dict, bool),
}


def _shape(schema: Any, where: str, depth: int) -> list[Cause]:
    """Is it a schema at all: every keyword of the type it must have, all the way down."""
    if not isinstance(schema, dict) or depth > 60:
        return [wrong(where, schema if not isinstance(schema, (dict, list)) else "object", "must be a schema object")]
    causes: list[Cause] = []
    for key, types in SHAPES.items():
        if key not in schema:
            continue
        value = schema[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            names = " or ".join(each.__name__ for each in types)
            causes.append(wrong(f"{where}.{key}", shown_kind(value), f"must be a {names}"))
    if causes:
        return causes
    for key in ("required", "x-kubernetes-list-map-keys"):
        if not all(isinstance(each, str) for each in schema.get(key, ())):
            causes.append(wrong(f"{where}.{key}", "array", "must be a list of names"))
    for name, child in schema.get("properties", {}).items():
        causes += _shape(child, f"{where}.properties[{name[:100]}]", depth + 1)
    for key in ("items", "not", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            causes += _shape(schema[key], f"{where}.{key}", depth + 1)
    for key in ("allOf", "anyOf", "oneOf"):
        for index, child in enumerate(schema.get(key, ())):
            causes += _shape(child, f"{where}.{key}[{index}]", depth + 1)
    return causes


def shown_kind(value: Any) -> Any:
    return structural.type_name(value) if isinstance(value, (dict, list)) or value is None else value


def _column(column: Json, where: str, causes: list[Cause]) -> None:
    for key in ("name", "type", "jsonPath"):
        if not column.get(key):
            causes.append(required(f"{where}.{key}"))
    if column.get("type") and column["type"] not in ("integer", "number", "string", "boolean", "date"):
        causes.append(unsupported(f"{where}.type", column["type"], ["boolean", "date", "integer", "number", "string"]))
    try:
        jsonpath.parse(column.get("jsonPath", ""))
    except jsonpath.BadPath as error:
        causes.append(wrong(f"{where}.jsonPath", column["jsonPath"], str(error)))


def _schema(schema: Any, where: str, causes: list[Cause], *, root: bool = False, depth: int = 0) -> None:
    if not isinstance(schema, dict) or depth > 60:
        causes.append(wrong(where, "object", "must be a schema object, nested at most 60 levels"))
        return
    for key in FORBIDDEN:
        if key in schema:
            causes.append(not_allowed(f"{where}.{key}", f"{key} is not supported"))
    if schema.get("uniqueItems"):
        causes.append(not_allowed(f"{where}.uniqueItems", "uniqueItems cannot be set to true since the "
                                  "runtime complexity becomes quadratic"))  # fmt: skip
    kind = schema.get("type")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if root and kind != "object":
        causes.append(wrong(f"{where}.type", kind or "", "must be object at the root") if kind else
                      required(f"{where}.type", "must not be empty at the root"))  # fmt: skip
    elif not kind and not free:
        causes.append(required(f"{where}.type", "must not be empty for specified object fields"))
    elif kind and kind not in TYPES:
        causes.append(unsupported(f"{where}.type", kind, sorted(TYPES)))
    if kind == "array" and not isinstance(schema.get("items"), dict):
        causes.append(required(f"{where}.items", "must be specified"))
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        causes.append(
            required(f"{where}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
        )
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict) and schema.get("properties"):
        causes.append(
            not_allowed(f"{where}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    if "pattern" in schema:
        try:
            regexps.compiled(schema["pattern"])
        except (re.error, TypeError) as error:
            causes.append(
                wrong(f"{where}.pattern", schema["pattern"], f"must be a valid regular expression, but isn't: {error}")
            )
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        text = rule.get("rule") if isinstance(rule, dict) else None
        field = f"{where}.x-kubernetes-validations[{index}].rule"
        if not isinstance(text, str) or not text.strip():
            causes.append(required(field, "rule is not specified"))
        elif why := rules.problem(text, schema, root):
            causes.append(wrong(field, text, why))
    before = len(causes)
    for name, child in (schema.get("properties") or {}).items():
        _schema(child, f"{where}.properties[{name}]", causes, depth=depth + 1)
    if isinstance(schema.get("items"), dict):
        _schema(schema["items"], f"{where}.items", causes, depth=depth + 1)
    if isinstance(extra, dict):
        _schema(extra, f"{where}.additionalProperties", causes, depth=depth + 1)
    if "default" in schema and len(causes) == before:
        for cause in structural.validate({**schema, "default": None}, schema["default"], f"{where}.default"):
            causes.append(cause)


def has_rules(schema: Any) -> bool:
    if isinstance(schema, dict):
        return bool(schema.get("x-kubernetes-validations")) or any(has_rules(each) for each in schema.values())
    return isinstance(schema, list) and any(has_rules(each) for each in schema)
