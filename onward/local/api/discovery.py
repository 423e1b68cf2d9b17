"""What the server can do, in the three ways clients ask: /api and /apis, per group, and aggregated."""

from __future__ import annotations

from typing import Any

from onward.local.api.registry import Registry, Resource

Json = dict[str, Any]
VERSION = {
    "major": "1",
    "minor": "35",
    "emulationMajor": "1",
    "emulationMinor": "35",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "34",
    "gitVersion": "v1.35.0-onward",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"

# (kind, group, version, verbs) of what a subresource takes and gives, where it is not the resource itself
SUBKINDS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "attach": ("PodAttachOptions", "", "v1", ("create", "get")),
    "binding": ("Binding", "", "v1", ("create",)),
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "exec": ("PodExecOptions", "", "v1", ("create", "get")),
    "portforward": ("PodPortForwardOptions", "", "v1", ("create", "get")),
    "scale": ("Scale", "autoscaling", "v1", ("get", "patch", "update")),
    "token": ("TokenRequest", "authentication.k8s.io", "v1", ("create",)),
    "log": ("Pod", "", "v1", ("get",)),
    "finalize": ("Namespace", "", "v1", ("update",)),
}
# Named by stock clusters, answered with 501 here; left out of discovery so that nobody is led on.
UNSERVED = ("proxy", "resize", "ephemeralcontainers")


def group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def shown_verbs(resource: Resource) -> list[str]:
    """In the order of the real server: create comes late for custom kinds."""
    found = sorted(resource.verbs)
    return sorted(found, key=lambda verb: verb in ("create", "update", "watch")) if resource.custom else found


def shown_subresources(resource: Resource) -> list[str]:
    found = [sub for sub in resource.subresources if sub not in UNSERVED]
    return sorted(found, reverse=resource.custom)


def sub_verbs(resource: Resource, sub: str) -> tuple[str, ...]:
    return SUBKINDS[sub][3] if sub in SUBKINDS else ("get", "patch", "update")


def versions(address: str) -> Json:
    served = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": served}


def _group(name: str, found: list[str]) -> Json:
    listed = [{"groupVersion": group_version(name, version), "version": version} for version in found]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def groups(registry: Registry) -> Json:
    found = [_group(name, found) for name, found in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def group(registry: Registry, name: str) -> Json | None:
    found = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, found)} if found and name else None


def resources(registry: Registry, name: str, version: str) -> Json | None:
    listed: list[Json] = []
    for each in registry.all():
        if (each.group, each.version) != (name, version):
            continue
        entry: Json = {
            "name": each.plural, "singularName": each.one, "namespaced": each.namespaced, "kind": each.kind,
            "verbs": shown_verbs(each),
        }  # fmt: skip
        if each.short_names:
            entry["shortNames"] = list(each.short_names)
        if each.categories:
            entry["categories"] = list(each.categories)
        listed.append(entry)
        for sub in shown_subresources(each):
            kind, sub_group, sub_version, verbs = SUBKINDS.get(sub, (each.kind, "", "", sub_verbs(each, sub)))
            child: Json = {"name": f"{each.plural}/{sub}", "singularName": "", "namespaced": each.namespaced,
                           "kind": kind, "verbs": list(verbs)}  # fmt: skip
            if sub_group:
                child.update(group=sub_group, version=sub_version)
            listed.append(child)
    if not listed:
        return None
    head: Json = {"kind": "APIResourceList", "apiVersion": "v1"} if name else {"kind": "APIResourceList"}
    return {**head, "groupVersion": group_version(name, version), "resources": listed}


def aggregated(registry: Registry, core: bool, form: str) -> Json:
    """Everything below /api (core) or /apis in one answer."""
    items: list[Json] = []
    for name, found in registry.groups().items():
        if bool(name) == core:
            continue
        listed = [
            {"version": version, "freshness": "Current", "resources": _aggregated(registry, name, version)}
            for version in found
        ]
        items.append({"metadata": {"name": name} if name else {},
                      "versions": listed})  # fmt: skip
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{form}",
        "metadata": {},
        "items": items,
    }


def _response(resource: Resource, kind: str, group: str, version: str) -> Json:
    """A built-in kind leaves its own group and version to where it is listed."""
    own = not resource.custom and (group, version) in ((resource.group, resource.version), ("", "v1"))
    return {"group": "" if own else group, "version": "" if own else version, "kind": kind}


def _aggregated(registry: Registry, name: str, version: str) -> list[Json]:
    listed: list[Json] = []
    for each in registry.all():
        if (each.group, each.version) != (name, version):
            continue
        own = _response(each, each.kind, each.group, each.version)
        entry: Json = {
            "resource": each.plural, "responseKind": own, "scope": "Namespaced" if each.namespaced else "Cluster",
            "singularResource": each.one, "verbs": shown_verbs(each),
        }  # fmt: skip
        if each.short_names:
            entry["shortNames"] = list(each.short_names)
        if each.categories:
            entry["categories"] = list(each.categories)
        subs: list[Json] = []
        for sub in shown_subresources(each):
            kind, sub_group, sub_version, verbs = SUBKINDS.get(
                sub, (each.kind, each.group, each.version, sub_verbs(each, sub))
            )
            response = _response(each, kind, sub_group, sub_version)
            subs.append({"subresource": sub, "responseKind": response, "verbs": list(verbs)})
        if subs:
            entry["subresources"] = subs
        listed.append(entry)
    return listed
