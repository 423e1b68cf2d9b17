"""Validation of a container's environment, and of references to fields of its pod (the downward API)."""

from __future__ import annotations

import re
from typing import Any

from onward.core.quantity import parse as value_of
from onward.local.api import names
from onward.local.api.status import Cause, missing_reference, required, unsupported, wrong

Json = dict[str, Any]
NAME = re.compile(r"[\x20-\x3c\x3e-\x7e]+")
NAME_TEXT = "a valid environment variable name must consist only of printable ASCII characters other than '='"
SUBSCRIPT = re.compile(r"(.+)\['(.+)'\]")
MAPS = ("metadata.annotations", "metadata.labels")
PLAIN = ("metadata.name", "metadata.namespace", "metadata.uid")
VOLUME_FIELDS = (*MAPS, *PLAIN)
ENV_FIELDS = (
    *PLAIN, "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP",
    "status.podIPs",
)  # fmt: skip
CONVERTED = {*ENV_FIELDS, *MAPS, "spec.restartPolicy", "spec.schedulerName", "status.phase"}
"""What has a name here, whether or not it may be used."""
RESOURCES = (
    "limits.cpu", "limits.ephemeral-storage", "limits.memory",
    "requests.cpu", "requests.ephemeral-storage", "requests.memory",
)  # fmt: skip
HUGE = ("limits.hugepages-", "requests.hugepages-")
SIZES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def check_environment(container: Json, at: str, files: set[str]) -> list[Cause]:
    """`env` and `envFrom`. `files` are the emptyDir volumes that variables may be read from."""
    causes: list[Cause] = []
    for index, env in enumerate(container.get("env") or ()):
        causes += _variable(env, f"{at}.env[{index}]", files)
    for index, source in enumerate(container.get("envFrom") or ()):
        causes += _whole(source, at, f"{at}.envFrom[{index}]")
    return causes


def _variable(env: Json, at: str, files: set[str]) -> list[Cause]:
    name, source = env.get("name", ""), env.get("valueFrom")
    causes = _name(name, f"{at}.name") if name else [required(f"{at}.name")]
    if source is None:
        return causes
    field = f"{at}.valueFrom"
    if "fieldRef" in source:
        causes += check_field(source["fieldRef"], f"{field}.fieldRef", ENV_FIELDS)
    if "resourceFieldRef" in source:
        causes += check_resource(source["resourceFieldRef"], f"{field}.resourceFieldRef")
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source:
            causes += _key_of(source[kind], f"{field}.{kind}")
    volume = (source.get("fileKeyRef") or {}).get("volumeName", "")
    if "fileKeyRef" in source and volume not in files:
        causes.append(missing_reference(f"{field}.fileKeyRef.volumeName", volume))
    if not source:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        causes.append(wrong(field, "", f"must specify one of: {listed}"))
    elif env.get("value"):
        causes.append(wrong(field, "", "may not be specified when `value` is not empty"))
    elif len(source) > 1:
        causes.append(wrong(field, "", "may not have more than one field specified at a time"))
    return causes


def _name(name: str, field: str) -> list[Cause]:
    return [] if NAME.fullmatch(name) else [wrong(field, name, NAME_TEXT)]


def _key_of(source: Json, at: str) -> list[Cause]:
    bad = names.subdomain_problem(source.get("name", ""))
    causes = [wrong(f"{at}.name", source.get("name", ""), bad)] if bad else []
    if not source.get("key"):
        return [*causes, required(f"{at}.key")]
    bad = names.config_key_problem(source["key"])
    return [*causes, wrong(f"{at}.key", source["key"], bad)] if bad else causes


def _whole(source: Json, container: str, at: str) -> list[Cause]:
    causes = _name(source["prefix"], f"{at}.prefix") if source.get("prefix") else []
    kinds = [kind for kind in ("configMapRef", "secretRef") if kind in source]
    for kind in kinds:
        name, field = source[kind].get("name", ""), f"{at}.{kind}.name"
        bad = names.subdomain_problem(name.rstrip("-") or "-") if name else ""
        causes += [required(field)] if not name else [wrong(field, name, bad)] if bad else []
    if not kinds:
        causes.append(wrong(f"{container}.envFrom", "", "must specify one of: `configMapRef` or `secretRef`"))
    elif len(kinds) > 1:
        why = "may not have more than one field specified at a time"
        causes.append(wrong(f"{container}.envFrom", "", why))
    return causes


def check_field(reference: Json, at: str, allowed: tuple[str, ...]) -> list[Cause]:
    """`fieldRef`: a field of the pod."""
    path, version = reference.get("fieldPath", ""), reference.get("apiVersion", "v1")
    if not path:
        return [required(f"{at}.fieldPath")]
    if version != "v1":
        return [wrong(f"{at}.fieldPath", path, f"error converting fieldPath: unsupported pod version: {version}")]
    found = SUBSCRIPT.fullmatch(path)
    if found:
        whole, key = found.groups()
        if whole not in MAPS:
            why = f"error converting fieldPath: field label does not support subscript: {path}"
            return [wrong(f"{at}.fieldPath", path, why)]
        return [
            wrong(at, key, bad) for bad in names.key_problems(key.lower() if whole == "metadata.annotations" else key)
        ]
    if path not in CONVERTED:
        return [wrong(f"{at}.fieldPath", path, f"error converting fieldPath: field label not supported: {path}")]
    return [] if path in allowed else [unsupported(f"{at}.fieldPath", path, allowed)]


def check_resource(reference: Json, at: str) -> list[Cause]:
    """`resourceFieldRef`: what a container asks for."""
    name, causes = reference.get("resource", ""), list[Cause]()
    if not name:
        causes.append(required(f"{at}.resource"))
    elif name not in RESOURCES and not name.startswith(HUGE):
        causes.append(unsupported(f"{at}.resource", name, RESOURCES))
    divisor = str(reference.get("divisor") or "0")
    if value_of(divisor) == 0:
        return causes
    if name.endswith(".cpu") and divisor not in ("1m", "1"):
        why = "only divisor's values 1m and 1 are supported with the cpu resource"
        causes.append(wrong(f"{at}.divisor", name, why))
    for ending, kind in ((".memory", "memory"), (".ephemeral-storage", "local ephemeral storage")):
        if name.endswith(ending) and divisor not in SIZES:
            why = f"only divisor's values {', '.join(SIZES)} are supported with the {kind} resource"
            causes.append(wrong(f"{at}.divisor", name, why))
    return causes
