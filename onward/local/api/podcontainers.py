"""Validation of a pod's containers: ports, resources, probes, hooks, rights."""

from __future__ import annotations

import re
from typing import Any

from onward.core.quantity import parse as value_of
from onward.local.api import names
from onward.local.api.podenvironment import check_environment
from onward.local.api.podvolumes import check_mounts
from onward.local.api.status import Cause, duplicate, not_allowed, required, unsupported, wrong

Json = dict[str, Any]
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PULL = ("Always", "IfNotPresent", "Never")
MESSAGES = ("File", "FallbackToLogsOnError")
RESIZE = ("NotRequired", "RestartContainer")
SCHEMES = ("HTTP", "HTTPS")
STANDARD = ("cpu", "memory", "ephemeral-storage")
ELSEWHERE = (
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims",
    "storage", "services.nodeports", "services.loadbalancers", "requests.cpu", "requests.memory", "requests.storage",
    "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
)  # fmt: skip
"""Known to quotas, not to containers."""
HEADER = re.compile(r"[-A-Za-z0-9]+")
HEADER_TEXT = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)
POLICIES, ACTIONS, OPERATORS = ("Always", "Never", "OnFailure"), ("Restart",), ("In", "NotIn")
LARGEST_ID = 2**31 - 1


def check_containers(spec: Json, at: str, volumes: set[str], files: set[str]) -> list[Cause]:
    """Those that run, and those that run before."""
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required(f"{at}.containers"))
    seen: set[str] = set()
    taken: set[tuple[Any, ...]] = set()
    grace = spec.get("terminationGracePeriodSeconds", 30)
    claims = {each.get("name") for each in spec.get("resourceClaims") or ()}
    for group in ("containers", "initContainers"):
        for index, each in enumerate(spec.get(group) or ()):
            where = f"{at}.{group}[{index}]"
            causes += _common(each, where, seen, volumes, files) + _claims(each, where, claims)
            if group == "containers" or each.get("restartPolicy") == "Always":
                causes += _life(each, where, grace)
            else:
                why = "may not be set for init containers without restartPolicy=Always"
                causes += [not_allowed(f"{where}.{key}", why) for key in ("lifecycle", *PROBES) if key in each]
            causes += _host_ports(each, where, taken if group == "containers" else set())
    return causes


def _common(container: Json, at: str, seen: set[str], volumes: set[str], files: set[str]) -> list[Cause]:
    causes = names.check_name(container, f"{at}.name", seen)
    seen.add(container.get("name", ""))
    image, policy = container.get("image", ""), container.get("imagePullPolicy")
    if not image:
        causes.append(required(f"{at}.image"))
    elif image != image.strip():
        causes.append(wrong(f"{at}.image", image, "must not have leading or trailing whitespace"))
    if container.get("terminationMessagePolicy") not in MESSAGES:
        value = container.get("terminationMessagePolicy", "")
        causes.append(unsupported(f"{at}.terminationMessagePolicy", value, MESSAGES))
    causes += _ports(container.get("ports") or [], f"{at}.ports")
    causes += check_environment(container, at, files)
    causes += check_mounts(container, at, volumes)
    if policy not in PULL:
        causes.append(unsupported(f"{at}.imagePullPolicy", policy, PULL))
    causes += check_resources(container.get("resources") or {}, f"{at}.resources")
    for each in container.get("resizePolicy") or ():
        if each.get("restartPolicy") not in RESIZE:
            causes.append(unsupported(f"{at}.resizePolicy", each.get("restartPolicy", ""), RESIZE))
    causes += _restarts(container, at)
    return causes + _rights(container.get("securityContext") or {}, f"{at}.securityContext")


def _restarts(container: Json, at: str) -> list[Cause]:
    """A container's own policy, and its rules for exit codes."""
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or []
    causes: list[Cause] = []
    if policy is None and rules:
        causes.append(required(f"{at}.restartPolicy", "must specify restartPolicy when restart rules are used"))
    elif policy is not None and policy not in POLICIES:
        causes.append(unsupported(f"{at}.restartPolicy", policy, POLICIES))
    for index, rule in enumerate(rules):
        where, codes = f"{at}.restartPolicyRules[{index}]", rule.get("exitCodes")
        if rule.get("action") not in ACTIONS:
            causes.append(unsupported(f"{where}.action", rule.get("action", ""), ACTIONS))
        if codes is None:
            causes.append(required(f"{where}.exitCodes"))
        elif codes.get("operator") not in OPERATORS:
            causes.append(unsupported(f"{where}.exitCodes.operator", codes.get("operator", ""), OPERATORS))
    return causes


def _claims(container: Json, at: str, claims: set[Any]) -> list[Cause]:
    causes = []
    for index, each in enumerate((container.get("resources") or {}).get("claims") or ()):
        if each.get("name") not in claims:
            listed = "is empty" if not claims else f"is {sorted(claims)}"
            why = f'Not found: "{each.get("name")}": must be one of the names in pod.spec.resourceClaims which {listed}'
            causes.append(Cause("FieldValueNotFound", why, f"{at}.resources.claims[{index}]"))
    return causes


def _life(container: Json, at: str, grace: int) -> list[Cause]:
    causes: list[Cause] = []
    for hook in ("postStart", "preStop"):
        if hook in (container.get("lifecycle") or {}):
            kinds = ("exec", "httpGet", "tcpSocket", "sleep")
            causes += _handler(container["lifecycle"][hook], f"{at}.lifecycle.{hook}", kinds, grace)
    for kind in PROBES:
        if kind in container:
            causes += _probe(container[kind], f"{at}.{kind}", kind, grace)
    return causes


# -- ports -------------------------------------------------------------------------------------------------------


def port_number(field: str, value: Any) -> list[Cause]:
    if not isinstance(value, int) or not 1 <= value <= 65535:
        return [wrong(field, value, "must be between 1 and 65535, inclusive")]
    return []


def port_name(field: str, name: str) -> list[Cause]:
    """All that is wrong with it."""
    found = []
    if len(name) > 15:
        found.append("must be no more than 15 characters")
    if not re.fullmatch(r"[-a-z0-9]+", name):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", name):
        found.append("must contain at least one letter (a-z)")
    if "--" in name:
        found.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        found.append("must not begin or end with a hyphen")
    return [wrong(field, name, why) for why in found]


def _ports(ports: list[Json], at: str) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        field = f"{at}[{index}]"
        number, name = port.get("containerPort", 0), port.get("name")
        if name:
            found = port_name(f"{field}.name", name)
            causes += found or ([duplicate(f"{field}.name", name)] if name in seen else [])
            seen.add(name)
        causes += port_number(f"{field}.containerPort", number) if number else [required(f"{field}.containerPort")]
        if port.get("hostPort"):
            causes += port_number(f"{field}.hostPort", port["hostPort"])
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            causes.append(unsupported(f"{field}.protocol", port.get("protocol", ""), ("SCTP", "TCP", "UDP")))
    return causes


def _host_ports(container: Json, at: str, taken: set[tuple[Any, ...]]) -> list[Cause]:
    """Two containers of a pod cannot have one port of their node."""
    causes = []
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            own = (port.get("protocol"), port.get("hostIP", ""), port["hostPort"])
            if own in taken:
                causes.append(duplicate(f"{at}.ports[{index}].hostPort", "/".join(map(str, own))))
            taken.add(own)
    return causes


# -- resources ---------------------------------------------------------------------------------------------------


def _resource_name(name: str, field: str) -> list[Cause]:
    prefix, slash, _ = name.partition("/")
    causes = [wrong(field, name, bad) for bad in names.key_problems(name)]
    if not slash:
        if name in STANDARD or name.startswith("hugepages-"):
            return causes
        if name not in ELSEWHERE and not causes:
            causes.append(wrong(field, name, "must be a standard resource type or fully qualified"))
        causes.append(wrong(field, name, "must be a standard resource for containers"))
    elif name.startswith("requests.") and not prefix.endswith("kubernetes.io"):
        causes.append(wrong(field, name, "doesn't follow extended resource name standard"))
    return causes


def check_resources(resources: Json, at: str) -> list[Cause]:
    """What a container may use, and what it asks for."""
    causes: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for group, values in (("limits", limits), ("requests", requests)):
        for name, amount in values.items():
            field, value = f"{at}.{group}[{name}]", value_of(amount)
            if value < 0:
                causes.append(wrong(field, amount, "must be greater than or equal to 0"))
            if "/" in name and value != int(value):
                causes.append(wrong(field, amount, "must be an integer"))
            causes += _resource_name(name, field)
            if group == "requests":
                causes += _within(name, amount, limits, at)
    every = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in every) and not every & {"cpu", "memory"}:
        causes.append(not_allowed(at, "HugePages require cpu or memory"))
    return causes


def _within(name: str, amount: Any, limits: Json, at: str) -> list[Cause]:
    whole = "/" in name or name.startswith("hugepages-")  # cannot be promised twice
    if name in limits:
        if whole and value_of(amount) != value_of(limits[name]):
            return [wrong(f"{at}.requests", amount, f"must be equal to {name} limit of {limits[name]}")]
        if value_of(amount) > value_of(limits[name]):
            return [wrong(f"{at}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}")]
    elif whole:
        return [required(f"{at}.limits", "Limit must be set for non overcommitable resources")]
    return []


# -- probes and hooks --------------------------------------------------------------------------------------------


def _handler(handler: Json, at: str, kinds: tuple[str, ...], grace: int) -> list[Cause]:
    """What a probe or a hook does."""
    causes: list[Cause] = []
    found = [key for key in kinds if key in handler]
    for index, kind in enumerate(found):
        given, field = handler[kind] or {}, f"{at}.{kind}"
        if index:
            causes.append(not_allowed(field, "may not specify more than 1 handler type"))
        elif kind == "exec" and not given.get("command"):
            causes.append(required(f"{field}.command"))
        elif kind in ("httpGet", "tcpSocket", "grpc"):
            port = given.get("port", 0)
            causes += port_number(f"{field}.port", port) if isinstance(port, int) else port_name(f"{field}.port", port)
            causes += _request(given, field) if kind == "httpGet" else []
        elif kind == "sleep" and not 0 <= given.get("seconds", 0) <= grace:
            why = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            causes.append(wrong(field, given["seconds"], why))
    return causes if found else [required(at, "must specify a handler type")]


def _request(given: Json, at: str) -> list[Cause]:
    causes = []
    if given.get("scheme", "HTTP") not in SCHEMES:
        causes.append(unsupported(f"{at}.scheme", given["scheme"], SCHEMES))
    for header in given.get("httpHeaders") or ():
        if not HEADER.fullmatch(header.get("name", "")):
            causes.append(wrong(f"{at}.httpHeaders", header.get("name", ""), HEADER_TEXT))
    return causes


def _probe(probe: Json, at: str, kind: str, grace: int) -> list[Cause]:
    causes = _handler(probe, at, ("exec", "httpGet", "tcpSocket", "grpc"), grace)
    for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if probe.get(key, 0) < 0:
            causes.append(wrong(f"{at}.{key}", probe[key], "must be greater than or equal to 0"))
    own, field = probe.get("terminationGracePeriodSeconds"), f"{at}.terminationGracePeriodSeconds"
    if own is not None and own <= 0:
        causes.append(wrong(field, own, "must be greater than 0"))
    if own is not None and kind == "readinessProbe":
        causes.append(wrong(field, own, "must not be set for readinessProbes"))
    if kind != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        causes.append(wrong(f"{at}.successThreshold", probe["successThreshold"], "must be 1"))
    return causes


# -- rights ------------------------------------------------------------------------------------------------------


def check_ids(context: Json, at: str, keys: tuple[str, ...]) -> list[Cause]:
    why = f"must be between 0 and {LARGEST_ID}, inclusive"
    return [wrong(f"{at}.{key}", context[key], why) for key in keys if not 0 <= context.get(key, 0) <= LARGEST_ID]


def check_seccomp(context: Json, at: str) -> list[Cause]:
    profile, field = context.get("seccompProfile"), f"{at}.seccompProfile"
    if profile is None:
        return []
    kind, file = profile.get("type", ""), profile.get("localhostProfile")
    if kind not in ("Localhost", "RuntimeDefault", "Unconfined"):
        known = ("Localhost", "RuntimeDefault", "Unconfined")
        return [unsupported(f"{field}.type", kind, known) if kind else required(f"{field}.type")]
    if kind == "Localhost" and not file:
        return [required(f"{field}.localhostProfile", "must be set when seccomp type is Localhost")]
    if kind != "Localhost" and file is not None:
        return [wrong(f"{field}.localhostProfile", file, "can only be set when seccomp type is Localhost")]
    return []


def _rights(context: Json, at: str) -> list[Cause]:
    causes = check_ids(context, at, ("runAsUser", "runAsGroup"))
    if context.get("procMount", "Default") not in ("Default", "Unmasked"):
        causes.append(unsupported(f"{at}.procMount", context["procMount"], ("Default", "Unmasked")))
    causes += check_seccomp(context, at)
    if context.get("allowPrivilegeEscalation") is False:
        why = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            causes.append(wrong(at, context, f"{why} `privileged` to true"))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            causes.append(wrong(at, context, f"{why} `capabilities.Add` CAP_SYS_ADMIN"))
    return causes
