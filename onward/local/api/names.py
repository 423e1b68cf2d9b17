"""Rules for names, labels and annotations, with the sentences the server says them in."""

from __future__ import annotations

import re
from typing import Any

from onward.local.api.status import Cause, duplicate, required, wrong

Json = dict[str, Any]
SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
LABEL_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
QUALIFIED = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
PATH_BAD = ("/", "%")

SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def subdomain_problem(name: str) -> str:
    if len(name) > 253:
        return "must be no more than 253 bytes"
    return "" if SUBDOMAIN.fullmatch(name) else SUBDOMAIN_TEXT


def label_problem(name: str) -> str:
    if len(name) > 63:
        return "must be no more than 63 bytes"
    return "" if LABEL.fullmatch(name) else LABEL_TEXT


def label_1035_problem(name: str) -> str:
    if len(name) > 63:
        return "must be no more than 63 bytes"
    return "" if LABEL_1035.fullmatch(name) else LABEL_1035_TEXT


def path_problem(name: str) -> str:
    if name in (".", ".."):
        return f"may not be '{name}'"
    for bad in PATH_BAD:
        if bad in name:
            return f"may not contain '{bad}'"
    return "must be no more than 253 bytes" if len(name) > 253 else ""


def name_rule(key: str) -> Any:
    """How objects of a resource may be called."""
    if key in ("namespaces",):
        return label_problem
    if key == "services":
        return label_1035_problem
    if key.endswith("rbac.authorization.k8s.io"):
        return path_problem
    return subdomain_problem


def key_problem(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or subdomain_problem(prefix)):
        return "prefix part " + (subdomain_problem(prefix) if prefix else "must be non-empty")
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return "" if QUALIFIED.fullmatch(name) else KEY_TEXT


def check_labels(labels: Json, field: str) -> list[Cause]:
    causes = []
    for key, value in labels.items():
        bad = key_problem(key)
        if bad:
            causes.append(wrong(field, key, bad))
        if len(value) > 63:
            causes.append(wrong(field, value, "must be no more than 63 bytes"))
        elif value and not QUALIFIED.fullmatch(value):
            causes.append(wrong(field, value, VALUE_TEXT))
    return causes


def check_annotations(annotations: Json, field: str) -> list[Cause]:
    causes = []
    size = 0
    for key, value in annotations.items():
        bad = key_problem(key.lower())
        if bad:
            causes.append(wrong(field, key, bad))
        size += len(key.encode()) + len(value.encode())
    if size > 256 * 1024:
        causes.append(Cause("FieldValueTooLong", "Too long: may not be more than 262144 bytes", field))
    return causes


def check_meta(meta: Json, key: str) -> list[Cause]:
    """metadata of any object."""
    causes: list[Cause] = []
    rule = name_rule(key)
    if meta.get("generateName"):
        bad = rule(meta["generateName"].rstrip("-.") or "-")
        if bad:
            causes.append(wrong("metadata.generateName", meta["generateName"], bad))
    if not meta.get("name"):
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        bad = rule(meta["name"])
        if bad:
            causes.append(wrong("metadata.name", meta["name"], bad))
    causes += check_labels(meta.get("labels") or {}, "metadata.labels")
    causes += check_annotations(meta.get("annotations") or {}, "metadata.annotations")
    causes += _owners(meta.get("ownerReferences") or [])
    for index, each in enumerate(meta.get("finalizers") or ()):
        field = f"metadata.finalizers[{index}]"
        bad = key_problem(each)
        if bad:
            causes.append(wrong(field, each, bad))
        elif "/" not in each and each not in ("orphan", "foregroundDeletion", "kubernetes") and "." not in each:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(wrong(field, each, why))
    return causes


def _owners(owners: list[Json]) -> list[Cause]:
    causes: list[Cause] = []
    controllers = 0
    for index, each in enumerate(owners):
        field = f"metadata.ownerReferences[{index}]"
        for key in ("apiVersion", "kind", "name", "uid"):
            if not each.get(key):
                causes.append(
                    Cause("FieldValueInvalid", f'Invalid value: "": {key} must not be empty', f"{field}.{key}")
                )
        controllers += bool(each.get("controller"))
    if controllers > 1:
        why = "Only one reference can have Controller set to true"
        causes.append(wrong("metadata.ownerReferences", "", why))
    return causes


__all__ = ["check_labels", "check_meta", "duplicate", "subdomain_problem"]
