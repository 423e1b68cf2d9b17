"""Label and field selectors: parsing with the server's wording, and matching."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from onward.local.api.status import bad_request

Json = dict[str, Any]
Match = Callable[[Json], bool]

_PART = re.compile(
    r"\s*(?:"
    r"(?P<key>[^\s!=<>(),]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    r"|(?P<key2>[^\s!=<>(),]+)\s*(?P<op>==|!=|=|<|>)\s*(?P<value>[^\s,()!=<>]*)"
    r"|(?P<not>!)?\s*(?P<key3>[^\s!=<>(),]+)"
    r")\s*(?:,|$)"
)
_LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def parse_labels(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A predicate on a label map. Raises ApiError for what the real server refuses."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match.end() == at:
            raise bad_request(
                f'unable to parse requirement: found "{text[at : at + 60].strip()}", expected: identifier, '
                "'!', 'in', 'notin', '=', '==', '!=' or ','"
            )
        tests.append(_test(match))
        at = match.end()
    return lambda labels: all(test(labels) for test in tests)


def _test(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key = match["key"] or match["key2"] or match["key3"]
    if not _LABEL.fullmatch(key):
        raise bad_request(
            f'unable to parse requirement: <nil>: Invalid value: "{key[:100]}": name part must consist of alphanumeric '
            "characters, '-', '_' or '.', and must start and end with an alphanumeric character"
        )
    if match["set"]:
        values = {value.strip() for value in match["values"].split(",")}
        if match["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: key not in labels or labels[key] not in values
    if match["op"]:
        value, op = match["value"], match["op"]
        if op == "!=":
            return lambda labels: labels.get(key) != value
        if op in "<>":
            if not re.fullmatch(r"-?\d+", value):
                raise bad_request(
                    f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": '
                    "for 'Gt', 'Lt' operators, the value must be an integer"
                )
            bound = int(value)

            def compare(labels: Mapping[str, str]) -> bool:
                found = labels.get(key, "")
                if not re.fullmatch(r"-?\d+", found):
                    return False
                return int(found) < bound if op == "<" else int(found) > bound

            return compare
        return lambda labels: labels.get(key) == value
    if match["not"]:
        return lambda labels: key not in labels
    return lambda labels: key in labels


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
    "replicasets.apps": ("status.replicas",),
    "replicationcontrollers": ("status.replicas",),
    "jobs.batch": ("status.successful",),
}
_FALSE = {"spec.hostNetwork", "spec.unschedulable"}
_EVENT_NAMES = {
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "source": "source.component",
}


def parse_fields(text: str, key: str, selectable: tuple[str, ...] = ()) -> Match:
    """A predicate on a whole object, for the fields that the resource can be selected by."""
    allowed = {"metadata.name", "metadata.namespace", *FIELDS.get(key, ()), *selectable}
    tests: list[Match] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^=!]+?)\s*(==|!=|=)\s*(.*)", part)
        if match is None:
            raise bad_request(f'invalid selector: "{part[:100]}"; can\'t understand "{part[:100]}"')
        path, op, value = match.groups()
        if path not in allowed:
            raise bad_request(f"field label not supported: {path[:100]}")
        tests.append(_field_test(path, value, op == "!="))
    return lambda body: all(test(body) for test in tests)


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


def build(labels: str, fields: str, key: str, selectable: tuple[str, ...] = ()) -> Match | None:
    """Both selectors as one predicate; None when there is nothing to select by."""
    by_label = parse_labels(labels) if labels.strip() else None
    by_field = parse_fields(fields, key, selectable) if fields.strip() else None
    if by_label is None:
        return by_field
    label_test = by_label

    def both(body: Json) -> bool:
        return label_test(body["metadata"].get("labels") or {}) and (by_field is None or by_field(body))

    return both
