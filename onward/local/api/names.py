"""Rules for names, labels and annotations, with the sentences the server says them in."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from onward.local.api.status import Cause, duplicate, required, wrong

Json = dict[str, Any]
SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
LABEL_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
QUALIFIED = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
PATH_BAD = ("/", "%")

CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
SEARCH = re.compile(r"_?[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?(?:\._?[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?)*")
SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"

CONFIG_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
SEARCH_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
)
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
        return "must be no more than 253 characters"
    return "" if SUBDOMAIN.fullmatch(name) else SUBDOMAIN_TEXT


def label_problem(name: str) -> str:
    if len(name) > 63:
        return "must be no more than 63 characters"
    if "." in name:
        return "must not contain dots"
    return "" if LABEL.fullmatch(name) else LABEL_TEXT


def label_1035_problem(name: str) -> str:
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if LABEL_1035.fullmatch(name) else LABEL_1035_TEXT


def search_problem(name: str) -> str:
    """A search path of DNS: a subdomain whose parts may have underscores."""
    if len(name) > 253:
        return "must be no more than 253 characters"
    return "" if SEARCH.fullmatch(name) else SEARCH_TEXT


def config_key_problem(key: str) -> str:
    """A key of a ConfigMap or a Secret."""
    if len(key) > 253:
        return "must be no more than 253 characters"
    if not CONFIG_KEY.fullmatch(key):
        return CONFIG_KEY_TEXT
    if key in (".", ".."):
        return f"must not be '{key}'"
    return "must not start with '..'" if key.startswith("..") else ""


def sysctl_problem(name: str) -> str:
    good = len(name) <= 253 and re.fullmatch(SYSCTL, name)
    return "" if good else f"must have at most 253 characters and match regex ^{SYSCTL}$"


def check_address(text: str, field: str) -> list[Cause]:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return [wrong(field, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
    return []


def check_name(named: Json, field: str, seen: set[str]) -> list[Cause]:
    """The name of one of a list, each of which has its own."""
    name = named.get("name", "")
    if not name:
        return [required(field)]
    bad = label_problem(name)
    if bad:
        return [wrong(field, name, bad)]
    return [duplicate(field, name)] if name in seen else []


def path_problem(name: str) -> str:
    if name in (".", ".."):
        return f"may not be '{name}'"
    for bad in PATH_BAD:
        if bad in name:
            return f"may not contain '{bad}'"
    return "must be no more than 253 characters" if len(name) > 253 else ""


def name_rule(key: str) -> Any:
    """How objects of a resource may be called."""
    if key in ("namespaces",):
        return label_problem
    if key == "services":
        return label_1035_problem
    if key.endswith("rbac.authorization.k8s.io"):
        return path_problem
    return subdomain_problem


def key_problems(key: str) -> list[str]:
    """All that is wrong with a qualified name: a label's key, a taint's, a finalizer."""
    prefix, slash, name = key.partition("/")
    if "/" in name:
        text = KEY_TEXT.removeprefix("name part ")
        middle = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {text}{middle}"]
    found = []
    if not slash:
        name = prefix
    elif not prefix:
        found.append("prefix part must be non-empty")
    elif subdomain_problem(prefix):
        found.append("prefix part " + subdomain_problem(prefix))
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > 63:
        found.append("name part must be no more than 63 characters")
    if not QUALIFIED.fullmatch(name):
        found.append(KEY_TEXT)
    return found


def key_problem(key: str) -> str:
    return next(iter(key_problems(key)), "")


def value_problem(value: str) -> str:
    """What is wrong with a label's value."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if not value or QUALIFIED.fullmatch(value) else VALUE_TEXT


def check_labels(labels: Json, field: str) -> list[Cause]:
    causes = []
    for key, value in labels.items():
        causes += [wrong(field, key, bad) for bad in key_problems(key)]
        bad = value_problem(value)
        if bad:
            causes.append(wrong(field, value, bad))
    return causes


def check_annotations(annotations: Json, field: str) -> list[Cause]:
    causes = []
    size = 0
    for key, value in annotations.items():
        causes += [wrong(field, key, bad) for bad in key_problems(key.lower())]
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
    field, causes = "metadata.ownerReferences", []
    for each in owners:
        for key, what in (("apiVersion", "version must"), ("kind", "must"), ("name", "must"), ("uid", "must")):
            if not each.get(key):
                causes.append(wrong(f"{field}.{key}", "", f"{what} not be empty"))
    controllers = [f"{each.get('kind')}/{each.get('name')}" for each in owners if each.get("controller")]
    if len(controllers) > 1:
        found = f'Found "true" in references for {controllers[0]} and {controllers[1]}'
        causes.append(wrong(field, owners, f"Only one reference can have Controller set to true. {found}"))
    return causes
