"""Validation of pods: the mistakes people make, found before anything is started.

Volumes, environment, containers and placement have files of their own: `podvolumes.py` and its neighbours.
"""

from __future__ import annotations

from typing import Any

from onward.core.quantity import parse
from onward.local.api import names
from onward.local.api.podcontainers import check_containers, check_ids, check_resources, check_seccomp
from onward.local.api.podplacement import check_placement, check_tolerations
from onward.local.api.podvolumes import check_volumes
from onward.local.api.status import Cause, forbidden, not_allowed, required, unsupported, wrong
from onward.local.api.store import Store, clone

Json = dict[str, Any]
RESTART = ("Always", "OnFailure", "Never")
DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
LONGEST_HOSTNAME = 64  # the kernel's
LONGEST_S = 2**31 - 1


def check_spec(spec: Json, at: str, template: bool = False) -> list[Cause]:
    """A pod's spec, or the one in a template."""
    causes, volumes = check_volumes(spec.get("volumes") or [], f"{at}.volumes")
    files = {each["name"] for each in spec.get("volumes") or () if "emptyDir" in each and "name" in each}
    causes += check_containers(spec, at, volumes, files)
    if spec.get("ephemeralContainers") and not template:
        causes.append(not_allowed(f"{at}.ephemeralContainers", "cannot be set on create"))
    causes += check_resources(spec.get("resources") or {}, f"{at}.resources")
    causes += _host_network(spec, at, template)
    if spec.get("restartPolicy") not in RESTART:
        value = spec.get("restartPolicy", "")
        causes.append(unsupported(f"{at}.restartPolicy", value, RESTART) if value else required(f"{at}.restartPolicy"))
    if spec.get("dnsPolicy") not in DNS:
        causes.append(unsupported(f"{at}.dnsPolicy", spec.get("dnsPolicy", ""), DNS))
    causes += names.check_labels(spec.get("nodeSelector") or {}, f"{at}.nodeSelector")
    causes += _security(spec, f"{at}.securityContext")
    causes += check_placement(spec, at)
    causes += _dns(spec, f"{at}.dnsConfig")
    for key in ("serviceAccountName", "nodeName"):
        bad = names.subdomain_problem(spec[key]) if spec.get(key) else ""
        causes += [wrong(f"{at}.{key}", spec[key], bad)] if bad else []
    if not 1 <= spec.get("activeDeadlineSeconds", 1) <= LONGEST_S:
        why = f"must be between 1 and {LONGEST_S}, inclusive"
        causes.append(wrong(f"{at}.activeDeadlineSeconds", spec["activeDeadlineSeconds"], why))
    for key in ("hostname", "subdomain"):
        bad = names.label_problem(spec[key]) if spec.get(key) else ""
        causes += [wrong(f"{at}.{key}", spec[key], bad)] if bad else []
    causes += _override(spec, at)
    causes += check_tolerations(spec.get("tolerations") or [], f"{at}.tolerations")
    causes += _aliases(spec.get("hostAliases") or [], f"{at}.hostAliases")
    if (spec.get("os") or {}).get("name") not in (None, "linux", "windows"):
        causes.append(unsupported(f"{at}.os", spec["os"]["name"], ("linux", "windows")))
    return causes


def _override(spec: Json, at: str) -> list[Cause]:
    name = spec.get("hostnameOverride")
    if name is None:
        return []
    field, bad = f"{at}.hostnameOverride", names.subdomain_problem(name)
    causes = [wrong(field, name, bad)] if bad else []
    if len(name) > LONGEST_HOSTNAME:
        causes.append(wrong(field, name, f"must be no more than {LONGEST_HOSTNAME} characters"))
    for key in ("hostNetwork", "setHostnameAsFQDN"):
        if spec.get(key):
            causes.append(not_allowed(field, f"may not be set when {key} is true"))
    return causes


def _host_network(spec: Json, at: str, template: bool) -> list[Cause]:
    """A pod that has its node's network has its node's ports."""
    if not spec.get("hostNetwork"):
        return []
    causes = []
    for index, container in enumerate(spec.get("containers") or ()):
        for number, port in enumerate(container.get("ports") or ()):
            given = port.get("hostPort", 0)
            if (given or not template) and given != port.get("containerPort", 0):
                field = f"{at}.containers[{index}].ports[{number}].hostPort"
                causes.append(wrong(field, given, "must match `containerPort` when `hostNetwork` is true"))
    return causes


def _security(spec: Json, at: str) -> list[Cause]:
    context = spec.get("securityContext") or {}
    causes = check_ids(context, at, ("fsGroup", "runAsUser", "runAsGroup"))
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        causes.append(wrong(f"{at}.shareProcessNamespace", True, why))
    for index, each in enumerate(context.get("sysctls") or ()):
        bad = names.sysctl_problem(each.get("name", ""))
        causes += [wrong(f"{at}.sysctls[{index}].name", each.get("name", ""), bad)] if bad else []
    return causes + check_seccomp(context, at)


def _dns(spec: Json, at: str) -> list[Cause]:
    config, causes = spec.get("dnsConfig"), list[Cause]()
    if spec.get("dnsPolicy") == "None":
        if config is None:
            return [required(at, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{at}.nameservers", why)]
    for index, server in enumerate((config or {}).get("nameservers") or ()):
        causes += names.check_address(server, f"{at}.nameservers[{index}]")
    for index, search in enumerate((config or {}).get("searches") or ()):
        bad = names.search_problem(search.removesuffix(".")) if search != "." else ""
        causes += [wrong(f"{at}.searches[{index}]", search, bad)] if bad else []
    return causes


def _aliases(aliases: list[Json], at: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, alias in enumerate(aliases):
        causes += names.check_address(alias.get("ip", ""), f"{at}[{index}].ip")
        for number, name in enumerate(alias.get("hostnames") or ()):
            bad = names.subdomain_problem(name)
            causes += [wrong(f"{at}[{index}].hostnames[{number}]", name, bad)] if bad else []
    return causes


def admit(store: Store, body: Json) -> None:
    """What a stock cluster's admission refuses in a new pod."""
    spec, meta = body.get("spec") or {}, body["metadata"]
    priority, account = spec.get("priorityClassName"), spec.get("serviceAccountName", "default")
    if priority and store.get(("priorityclasses.scheduling.k8s.io", "", priority)) is None:
        why = f"no PriorityClass with name {priority} was found"
        raise forbidden("", "pods", meta.get("name", ""), why)
    where = meta.get("namespace", "")
    if account != "default" and store.get(("serviceaccounts", where, account)) is None:
        why = f'error looking up service account {where}/{account}: serviceaccount "{account}" not found'
        raise forbidden("", "pods", meta.get("name", ""), why)


FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_update(new: Json, old: Json) -> list[Cause]:
    """A pod's spec is fixed, but for a few fields."""
    before, after = _comparable(old), _comparable(new)
    deadline, had = ((each.get("spec") or {}).get("activeDeadlineSeconds") for each in (new, old))
    if had is not None and (deadline is None or deadline > had):
        why = "must be less than or equal to previous value"
        if deadline is None:
            why = "must not update from a positive integer to nil value"
        return [wrong("spec.activeDeadlineSeconds", deadline, why)]
    if before == after:
        had = (old.get("spec") or {}).get("tolerations") or []
        has = (new.get("spec") or {}).get("tolerations") or []
        if any(each not in has for each in had):
            why = "existing toleration can not be modified except its tolerationSeconds"
            return [not_allowed("spec.tolerations", why)]
        return []
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    return [not_allowed("spec", f"{FIXED}\nchanged: {', '.join('spec.' + key for key in changed)}")]


def _comparable(pod: Json) -> Json:
    spec = clone(pod.get("spec") or {})
    for key in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        spec.pop(key, None)
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        container.pop("image", None)
    return spec


def check_status(new: Json) -> list[Cause]:
    """What a node says about a pod."""
    causes: list[Cause] = []
    for index, each in enumerate((new.get("status") or {}).get("podIPs") or ()):
        causes += names.check_address(each.get("ip", ""), f"status.podIPs[{index}]")
    return causes


def warnings(body: Json) -> list[str]:
    """What is taken as it is, and is likely to be a mistake."""
    found = [_hostname_warning(body["metadata"]["name"])]
    for group in ("initContainers", "containers"):
        for index, each in enumerate((body.get("spec") or {}).get(group) or ()):
            found += _container_warnings(each, f"spec.{group}[{index}]")
    return [text for text in found if text]


def _container_warnings(container: Json, at: str) -> list[str]:
    found = []
    for group, amounts in sorted((container.get("resources") or {}).items()):
        value = amounts.get("memory") if isinstance(amounts, dict) else None
        if value is not None and parse(value) != int(parse(value)):
            found.append(
                f'{at}.resources.{group}[memory]: fractional byte value "{value}" is invalid, must be an integer'
            )
    seen: dict[Any, int] = {}
    for index, env in enumerate(container.get("env") or ()):
        if env["name"] in seen:
            hidden = f'{at}.env[{index}]: hides previous definition of "{env["name"]}"'
            found.append(f"{hidden}, which may be dropped when using apply")
        seen[env["name"]] = index
    seen = {}
    for index, port in enumerate(container.get("ports") or ()):
        own = (port.get("containerPort"), port.get("hostPort"), port.get("protocol"), port.get("hostIP"))
        if own in seen:
            found.append(f"{at}.ports[{index}]: duplicate port definition with {at}.ports[{seen[own]}]")
        seen.setdefault(own, index)
    return found


def _hostname_warning(name: str) -> str:
    """A pod's name is its hostname; one that cannot be a host's is not refused."""
    bad = "must not contain dots" if "." in name else ""
    bad = bad or ("must be no more than 63 characters" if len(name) > 63 else "")
    why = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended"
    return f"metadata.name: {why}: [{bad}]" if bad else ""
