"""What a request asks for: path, query and body options, parsed once and refused where they make no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward.local.api.registry import Registry, Resource
from onward.local.api.status import (
    Cause,
    NoSuchPage,
    bad_request,
    internal,
    invalid,
    method_not_allowed,
    no_such_path,
    not_allowed,
    required,
    too_long,
    unsupported,
    wrong,
)

Json = dict[str, Any]
MAX_MANAGER = 128
POLICIES = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True)
class Target:
    """The resource a path names."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    watch: bool = False
    """Asked for by the old way: /watch/ in the path."""


def parse_path(registry: Registry, path: str) -> Target:
    """/api/v1/... and /apis/GROUP/VERSION/..., or 404."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, tail = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, tail = parts[1], parts[2], parts[3:]
    else:
        raise NoSuchPage()
    if group not in registry.groups():
        raise NoSuchPage()
    namespace, watch = "", tail[0] == "watch" and len(tail) > 1
    tail = tail[1:] if watch else tail
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
    return Target(resource, namespace, name, sub, watch)


def verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The verb of a request on a resource."""
    if method == "GET":
        if target.watch:
            return "watch"
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
    """Only "0" and "false" are no; anything else that is there is yes."""
    return name in query and query[name].lower() not in ("0", "false")


def number(query: Mapping[str, str], name: str, default: int = 0) -> int:
    value = query.get(name, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{value[:60]}": invalid syntax') from None


def version_of(text: str, watch: bool = False) -> int:
    try:
        found = int(text or "0")
    except ValueError:
        found = -1
    if found < 0:
        why = f'resourceVersion: Invalid value: "{text[:60]}": strconv.ParseUint: parsing "{text[:60]}": invalid syntax'
        raise internal(why) if watch else bad_request(f"invalid resource version: {why}")
    return found


@dataclass(frozen=True)
class WriteOptions:
    """Query parameters of create, update and patch."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False
    warnings: list[str] = field(default_factory=list)


def write_options(
    query: Mapping[str, str], agent: str, kind: str = "CreateOptions", apply: bool = False
) -> WriteOptions:
    """`kind` is how complaints about the options name them."""
    manager, validation = query.get("fieldManager", ""), query.get("fieldValidation", "")
    causes: list[Cause] = []
    if apply and not manager:
        causes.append(required("fieldManager", "is required for apply patch"))
    elif kind == "PatchOptions" and not apply and "force" in query:
        causes.append(not_allowed("force", "may not be specified for non-apply patch"))
    if len(manager.encode()) > MAX_MANAGER:
        causes.append(too_long("fieldManager", MAX_MANAGER))
    causes += _dry_run(query.get("dryRun", ""))
    if validation not in ("", "Ignore", "Strict", "Warn"):
        causes.append(unsupported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    if causes:
        raise invalid("meta.k8s.io", kind, "", causes)
    manager = manager or agent.split("/")[0][:MAX_MANAGER] or "unknown"
    return WriteOptions(query.get("dryRun") == "All", manager, validation or "Warn", flag(query, "force"))


def _dry_run(value: Any) -> list[Cause]:
    given = value if isinstance(value, list) else [value] if value else []
    return [unsupported("dryRun", given, ("All",))] if any(each != "All" for each in given) else []


@dataclass(frozen=True)
class DeleteOptions:
    """Body (or query) of delete."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    dry_run: bool = False


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    """From the body (already of the right types), or from the query where there is none."""
    given: Json = body or {}
    if body is None:
        given = {key: query[key] for key in ("propagationPolicy", "dryRun") if query.get(key)}
        if query.get("gracePeriodSeconds"):
            given["gracePeriodSeconds"] = number(query, "gracePeriodSeconds")
        if "orphanDependents" in query:
            given["orphanDependents"] = flag(query, "orphanDependents")
    policy, orphan = given.get("propagationPolicy"), given.get("orphanDependents")
    causes: list[Cause] = []
    if policy is not None and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(wrong("propagationPolicy", policy, why))
    if policy is not None and policy not in POLICIES:
        causes.append(unsupported("propagationPolicy", policy, (*POLICIES, "nil")))
    causes += _dry_run(given.get("dryRun"))
    if causes:
        raise invalid("meta.k8s.io", "DeleteOptions", "", causes)
    if policy is None and orphan is not None:
        policy = "Orphan" if orphan else "Background"
    conditions = given.get("preconditions") or {}
    uid, version = str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or "")
    grace = given.get("gracePeriodSeconds")
    return DeleteOptions(grace, uid, version, policy or "", bool(given.get("dryRun")))


def check_list(query: Mapping[str, str], watch: bool) -> None:
    """What list and watch refuse in their options."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    field, causes = "resourceVersionMatch", []
    if watch:
        if "sendInitialEvents" in query and match != "NotOlderThan":
            causes.append(not_allowed(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        if match and "sendInitialEvents" not in query:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(not_allowed(field, why))
        if match and match != "NotOlderThan":
            causes.append(unsupported(field, match, ("NotOlderThan",)))
    else:
        if match and not version:
            causes.append(not_allowed(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if match and query.get("continue"):
            causes.append(not_allowed(field, "resourceVersionMatch is forbidden when continue is provided"))
        if match not in ("", "Exact", "NotOlderThan"):
            causes.append(unsupported(field, match, ("Exact", "NotOlderThan", "")))
        if match == "Exact" and version == "0":
            causes.append(not_allowed(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
        if "sendInitialEvents" in query:
            causes.append(not_allowed("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)
