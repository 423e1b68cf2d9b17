"""Label and field selectors: parsing with the server's wording, and matching."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from onward.local.api import labelselectors
from onward.local.api.registry import Resource
from onward.local.api.status import bad_request

Json = dict[str, Any]
Match = Callable[[Json], bool]


def selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector object (matchLabels, matchExpressions) against labels; an empty one matches all."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or ():
        key, op, values = each.get("key"), each.get("operator"), each.get("values") or ()
        found = labels.get(key)
        good = {
            "In": found in values,
            "NotIn": found is None or found not in values,
            "Exists": found is not None,
            "DoesNotExist": found is None,
        }.get(op, False)
        if not good:
            return False
    return True


def written(selector: Json) -> str:
    """A LabelSelector object as a query string, for scale.status.selector."""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or ():
        values = ",".join(each.get("values") or ())
        op = each.get("operator")
        shape = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}.get(op, "{}")
        parts.append(shape.format(each.get("key"), values))
    return ",".join(parts)


FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "reportingController",
    ),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "replicationcontrollers": ("status.replicas",),
    "jobs.batch": ("status.successful",),
}
_FALSE = {"spec.hostNetwork", "spec.unschedulable"}
_EVENT_NAMES = {
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "source": "source.component",
}


def parse_fields(text: str, resource: Resource) -> Match:
    """A predicate on a whole object, for the fields that the resource can be selected by."""
    allowed = ("metadata.name", "metadata.namespace", *FIELDS.get(resource.key, ()), *resource.selectable)
    tests: list[Match] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^=!]+?)\s*(==|!=|=)\s*(.*)", part)
        if match is None:
            raise bad_request(f"invalid selector: '{text[:100]}'; can't understand '{part[:100]}'")
        path, op, value = match.groups()
        if path not in allowed:
            raise bad_request(_unknown(path[:100], resource))
        tests.append(_field_test(path, value, op == "!="))
    return lambda body: all(test(body) for test in tests)


def _unknown(path: str, resource: Resource) -> str:
    if resource.key == "jobs.batch":
        return f'field label "{path}" not supported for Job'
    if resource.custom or resource.key in FIELDS:
        return f"field label not supported: {path}"
    return f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _field_test(path: str, value: str, negated: bool) -> Match:
    for short, long in _EVENT_NAMES.items():
        if path == short or path.startswith(short + "."):
            path = long + path[len(short) :]
    steps = path.split(".")

    def test(body: Json) -> bool:
        found: Any = body
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, bool) or (found is None and path in _FALSE):
            found = "true" if found else "false"
        return (("" if found is None else str(found)) == value) != negated

    return test


def build(labels: str, fields: str, resource: Resource) -> Match | None:
    """Both selectors as one predicate; None when there is nothing to select by."""
    by_label = labelselectors.parse(labels) if labels.strip() else None
    by_field = parse_fields(fields, resource) if fields.strip() else None
    if by_label is None:
        return by_field
    label_test = by_label

    def both(body: Json) -> bool:
        return label_test(body["metadata"].get("labels") or {}) and (by_field is None or by_field(body))

    return both
