"""Validation of a pod's volumes, and of where its containers see them."""

from __future__ import annotations

from typing import Any

from onward.core.quantity import parse as value_of
from onward.local.api import names
from onward.local.api.podenvironment import VOLUME_FIELDS, check_field, check_resource
from onward.local.api.status import Cause, missing_reference, not_allowed, required, unsupported, wrong

Json = dict[str, Any]
HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
NEEDED = {
    "hostPath": ("path",),
    "nfs": ("server", "path"),
    "secret": ("secretName",),
    "configMap": ("name",),
    "persistentVolumeClaim": ("claimName",),
}
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
RECURSIVE = ("Disabled", "Enabled", "IfPossible")
TOKEN_S = 600
"""A token lives for ten minutes at least."""


def check_volumes(volumes: list[Json], at: str) -> tuple[list[Cause], set[str]]:
    """The problems, and the names of those that have none."""
    causes: list[Cause] = []
    good: set[str] = set()
    for index, volume in enumerate(volumes):
        field = f"{at}[{index}]"
        found = names.check_name(volume, f"{field}.name", good) + _source(volume, field)
        if not found:
            good.add(volume["name"])
        causes += found
    return causes, good


def _source(volume: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    sources = [key for key in volume if key != "name"]
    if len(sources) > 1:
        causes.append(not_allowed(f"{at}.{sources[1]}", "may not specify more than 1 volume type"))
    for kind in sources:
        given, field = volume[kind] or {}, f"{at}.{kind}"
        causes += [required(f"{field}.{key}") for key in NEEDED.get(kind, ()) if not given.get(key)]
        check = CHECKS.get(kind)
        if check is not None:
            causes += check(given, field)
    return causes


def _empty_dir(given: Json, at: str) -> list[Cause]:
    if "sizeLimit" in given and value_of(given["sizeLimit"]) < 0:
        return [not_allowed(f"{at}.sizeLimit", "SizeLimit field must be a valid resource quantity")]
    return []


def _host_path(given: Json, at: str) -> list[Cause]:
    causes = _no_way_up(given.get("path") or "", f"{at}.path")
    if given.get("type") not in (None, *HOST_PATH_TYPES):
        causes.append(unsupported(f"{at}.type", given["type"], HOST_PATH_TYPES))
    return causes


def _nfs(given: Json, at: str) -> list[Cause]:
    path = given.get("path")
    return [wrong(f"{at}.path", path, "must be an absolute path")] if path and not path.startswith("/") else []


def _mode(given: Json, key: str, at: str) -> list[Cause]:
    if key in given and not 0 <= given[key] <= 0o777:
        return [wrong(f"{at}.{key}", given[key], "must be a number between 0 and 0777 (octal), both inclusive")]
    return []


def _files(given: Json, at: str) -> list[Cause]:
    """A ConfigMap or a Secret."""
    causes = _mode(given, "defaultMode", at)
    for index, item in enumerate(given.get("items") or ()):
        field = f"{at}.items[{index}]"
        causes += [required(f"{field}.{key}") for key in ("key", "path") if not item.get(key)]
        causes += _inner_path(item.get("path") or "", f"{field}.path") + _mode(item, "mode", field)
    return causes


def _downward(given: Json, at: str) -> list[Cause]:
    causes = _mode(given, "defaultMode", at)
    for item in given.get("items") or ():
        causes += [required(f"{at}.path")] if not item.get("path") else []
        causes += _inner_path(item.get("path") or "", f"{at}.path")
        if "fieldRef" in item:
            causes += check_field(item["fieldRef"], f"{at}.fieldRef", VOLUME_FIELDS)
            if "resourceFieldRef" in item:
                both = "fieldRef and resourceFieldRef can not be specified simultaneously"
                causes.append(wrong(at, "resource", both))
        elif "resourceFieldRef" in item:
            reference, field = item["resourceFieldRef"], f"{at}.resourceFieldRef"
            named = bool(reference.get("containerName"))
            causes += check_resource(reference, field) if named else [required(f"{field}.containerName")]
        else:
            causes.append(required(at, "one of fieldRef and resourceFieldRef is required"))
        causes += _mode(item, "mode", at)
    return causes


def _projected(given: Json, at: str) -> list[Cause]:
    causes = _mode(given, "defaultMode", at)
    for index, source in enumerate(given.get("sources") or ()):
        field = f"{at}.sources[{index}]"
        for kind in ("secret", "configMap"):
            if kind in source:
                causes += [required(f"{field}.{kind}.name")] if not source[kind].get("name") else []
                causes += _files(source[kind], f"{field}.{kind}")
        if "downwardAPI" in source:
            causes += _downward(source["downwardAPI"], f"{field}.downwardAPI")
        token = source.get("serviceAccountToken")
        if token is not None:
            if token.get("expirationSeconds", TOKEN_S) < TOKEN_S:
                why = "may not specify a duration less than 10 minutes"
                causes.append(wrong(f"{field}.serviceAccountToken.expirationSeconds", token["expirationSeconds"], why))
            causes += [required(f"{at}.path")] if not token.get("path") else []
        if len(source) > 1:
            causes.append(not_allowed(field, "may not specify more than 1 volume type per source"))
    return causes


CHECKS = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "nfs": _nfs,
    "configMap": _files,
    "secret": _files,
    "downwardAPI": _downward,
    "projected": _projected,
}


def _no_way_up(path: str, field: str) -> list[Cause]:
    return [wrong(field, path, "must not contain '..'")] if ".." in path.split("/") else []


def _down(path: str, field: str) -> list[Cause]:
    """A path that starts at the volume and stays in it."""
    absolute = [wrong(field, path, "must be a relative path")] if path.startswith("/") else []
    return absolute + _no_way_up(path, field)


def _inner_path(path: str, field: str) -> list[Cause]:
    """The same, for files that are written: names that start with two dots are taken."""
    taken = path.startswith("..") and not path.startswith("../") and path != ".."
    return _down(path, field) + ([wrong(field, path, "must not start with '..'")] if taken else [])


def check_mounts(container: Json, at: str, volumes: set[str]) -> list[Cause]:
    """`volumeMounts` and `volumeDevices` of a container."""
    causes: list[Cause] = []
    mounted: set[str] = set()
    whole = f"{at}.volumeMounts"
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        field, path = f"{whole}[{index}]", mount.get("mountPath", "")
        if not mount.get("name"):
            causes.append(required(f"{field}.name"))
        elif mount["name"] not in volumes:
            causes.append(missing_reference(f"{field}.name", mount["name"]))
        if not path:
            causes.append(required(f"{field}.mountPath"))
        elif path in mounted:
            causes.append(wrong(f"{field}.mountPath", path, "must be unique"))
        mounted.add(path)
        causes += _down(mount.get("subPath") or "", f"{whole}.subPath")
        expression = mount.get("subPathExpr") or ""
        if expression and mount.get("subPath"):
            why = "subPathExpr and subPath are mutually exclusive"
            causes.append(wrong(f"{field}.subPathExpr", expression, why))
        causes += _down(expression, f"{whole}.subPathExpr")
        causes += _manner(mount, container, whole)
    for index, device in enumerate(container.get("volumeDevices") or ()):
        if device.get("name") not in volumes:
            causes.append(missing_reference(f"{at}.volumeDevices[{index}].name", device.get("name", "")))
    return causes


def _manner(mount: Json, container: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    propagation, recursive = mount.get("mountPropagation"), mount.get("recursiveReadOnly")
    if propagation is not None and propagation not in PROPAGATIONS:
        causes.append(unsupported(f"{at}.mountPropagation", propagation, PROPAGATIONS))
    if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        why = "Bidirectional mount propagation is available only to privileged containers"
        causes.append(not_allowed(f"{at}.mountPropagation", why))
    if recursive is not None and recursive not in RECURSIVE:
        causes.append(unsupported(f"{at}.recursiveReadOnly", recursive, RECURSIVE))
    elif recursive in ("Enabled", "IfPossible"):
        only = "may only be specified when"
        if not mount.get("readOnly"):
            causes.append(not_allowed(f"{at}.recursiveReadOnly", f"{only} readOnly is true"))
        if propagation not in (None, "None"):
            causes.append(not_allowed(f"{at}.recursiveReadOnly", f"{only} mountPropagation is None or not specified"))
    return causes
