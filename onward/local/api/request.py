"""What a request asks for: path, query and body options, parsed once and refused where they make no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward.local.api.registry import Registry, Resource
from onward.local.api.status import ApiError, bad_request, method_not_allowed, no_such_path

Json = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The resource a path names."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    rest: str = ""


def parse_path(registry: Registry, path: str) -> Target:
    """/api/v1/... and /apis/GROUP/VERSION/..., or 404."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, tail = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, tail = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if tail[0] == "watch":
        raise ApiError(501, "NotImplemented", "the /watch/ prefix is not served; use ?watch=true on the list instead")
    if tail[0] == "namespaces" and len(tail) >= 3 and registry.find(group, version, tail[2]) is not None:
        namespace, tail = tail[1], tail[2:]
    resource = registry.find(group, version, tail[0])
    if resource is None:
        raise no_such_path()
    if namespace and not resource.namespaced:
        raise no_such_path()
    name = tail[1] if len(tail) > 1 else ""
    sub = tail[2] if len(tail) > 2 else ""
    if resource.namespaced and not namespace and name:
        raise no_such_path()
    if sub and sub not in resource.subresources:
        raise no_such_path()
    if len(tail) > 3 and sub != "proxy":
        raise no_such_path()
    return Target(resource, namespace, name, sub, "/".join(tail[3:]))


def verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The verb of a request on a resource."""
    if method == "GET":
        if target.name:
            return "get"
        return "watch" if flag(query, "watch") else "list"
    try:
        found = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    except KeyError:
        raise method_not_allowed() from None
    if found == "delete" and not target.name:
        return "deletecollection"
    if (found in ("update", "patch")) != bool(target.name) and found != "delete" and not target.subresource:
        raise method_not_allowed()
    return found


def flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "")
    if value.lower() in ("", "0", "f", "false"):
        return False
    if value.lower() in ("1", "t", "true"):
        return True
    raise bad_request(f'strconv.ParseBool: parsing "{value[:60]}": invalid syntax ({name})')


def number(query: Mapping[str, str], name: str, default: int = 0) -> int:
    value = query.get(name, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{value[:60]}": invalid syntax ({name})') from None


def version_of(text: str) -> int:
    try:
        found = int(text or "0")
    except ValueError:
        found = -1
    if found < 0:
        raise bad_request(f'Invalid value: "{text[:60]}": strconv.ParseUint: parsing "{text[:60]}": invalid syntax')
    return found


@dataclass(frozen=True)
class WriteOptions:
    """Query parameters of create, update and patch."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False
    warnings: list[str] = field(default_factory=list)


def write_options(query: Mapping[str, str], agent: str) -> WriteOptions:
    dry = query.get("dryRun", "")
    if dry not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry[:60]}": supported values: "All"')
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        raise bad_request(
            f'fieldValidation: Unsupported value: "{validation[:60]}": supported values: "Ignore", "Strict", "Warn"'
        )
    manager = query.get("fieldManager", "") or agent.split("/")[0][:128] or "unknown"
    if len(manager) > 128:
        raise bad_request("fieldManager: Too long: may not be more than 128 bytes")
    return WriteOptions(dry == "All", manager, validation, flag(query, "force"))


@dataclass(frozen=True)
class DeleteOptions:
    """Body (or query) of delete."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    dry_run: bool = False


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    body = body if body is not None else {}
    if not isinstance(body, dict):
        raise bad_request("the body of a delete must be a DeleteOptions object")
    grace = body.get("gracePeriodSeconds")
    if grace is None and query.get("gracePeriodSeconds"):
        grace = number(query, "gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool) or grace < 0):
        raise bad_request(f"gracePeriodSeconds: Invalid value: {str(grace)[:60]}: must be an integer of 0 or more")
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if not propagation and body.get("orphanDependents") is not None:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    if propagation not in ("", "Background", "Foreground", "Orphan"):
        raise ApiError(
            422, "Invalid",
            'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: '
            f'"{str(propagation)[:60]}": supported values: "Background", "Foreground", "Orphan"',
        )  # fmt: skip
    conditions = body.get("preconditions") or {}
    dry = body.get("dryRun") or ([query["dryRun"]] if query.get("dryRun") else [])
    uid, version = str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or "")
    return DeleteOptions(grace, uid, version, propagation, dry == ["All"])
