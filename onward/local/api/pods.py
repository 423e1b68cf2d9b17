"""Validation of pods: the mistakes people make, found before anything is started."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from onward.core.quantity import parse as value_of
from onward.local.api import names
from onward.local.api.status import (
    Cause,
    duplicate,
    forbidden,
    missing_reference,
    not_allowed,
    required,
    unsupported,
    wrong,
)
from onward.local.api.store import Store, clone

Json = dict[str, Any]
RESTART = ("Always", "OnFailure", "Never")
DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PULL = ("Always", "IfNotPresent", "Never")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ENV = re.compile(r"[^=\x00-\x1f\x7f]+")


def port_number(field: str, value: Any) -> list[Cause]:
    if not isinstance(value, int) or not 1 <= value <= 65535:
        return [wrong(field, value, "must be between 1 and 65535, inclusive")]
    return []


def check_spec(spec: Json, at: str) -> list[Cause]:
    """A pod's spec, or the one in a template."""
    causes: list[Cause] = []
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        causes += _volume(volume, f"{at}.volumes[{index}]", volumes)
    containers = spec.get("containers") or []
    if not containers:
        causes.append(required(f"{at}.containers"))
    seen: set[str] = set()
    taken: set[tuple[Any, ...]] = set()
    for group in ("containers", "initContainers"):
        for index, each in enumerate(spec.get(group) or ()):
            where = f"{at}.{group}[{index}]"
            causes += _container(each, where, seen, volumes)
            if group == "containers":
                causes += _host_ports(each, where, taken)
            elif each.get("restartPolicy") != "Always":
                why = "may not be set for init containers without restartPolicy=Always"
                causes += [not_allowed(f"{where}.{key}", why) for key in (*PROBES, "lifecycle") if key in each]
    if spec.get("restartPolicy") not in RESTART:
        value = spec.get("restartPolicy", "")
        causes.append(unsupported(f"{at}.restartPolicy", value, RESTART) if value else required(f"{at}.restartPolicy"))
    if spec.get("dnsPolicy") not in DNS:
        causes.append(unsupported(f"{at}.dnsPolicy", spec.get("dnsPolicy", ""), DNS))
    if spec.get("activeDeadlineSeconds", 1) < 1:
        why = "must be between 1 and 2147483647, inclusive"
        causes.append(wrong(f"{at}.activeDeadlineSeconds", spec["activeDeadlineSeconds"], why))
    for key in ("hostname", "subdomain"):
        bad = names.label_problem(spec[key]) if spec.get(key) else ""
        if bad:
            causes.append(wrong(f"{at}.{key}", spec[key], bad))
    for key in ("nodeName", "serviceAccountName", "schedulerName"):
        bad = names.subdomain_problem(spec[key]) if spec.get(key) and key != "schedulerName" else ""
        if bad:
            causes.append(wrong(f"{at}.{key}", spec[key], bad))
    causes += names.check_labels(spec.get("nodeSelector") or {}, f"{at}.nodeSelector")
    for index, each in enumerate(spec.get("tolerations") or ()):
        causes += _toleration(each, f"{at}.tolerations[{index}]")
    causes += _affinity(spec.get("affinity") or {}, f"{at}.affinity")
    return causes


def _name(named: Json, at: str, seen: set[str]) -> list[Cause]:
    """The name of one of a list, each of which has its own."""
    name = named.get("name", "")
    if not name:
        return [required(at)]
    bad = names.label_problem(name)
    if bad:
        return [wrong(at, name, bad)]
    return [duplicate(at, name)] if name in seen else []


def _volume(volume: Json, at: str, seen: set[str]) -> list[Cause]:
    causes = _name(volume, f"{at}.name", seen)
    sources = [key for key in volume if key != "name"]
    if len(sources) > 1:
        causes.append(not_allowed(f"{at}.{sources[1]}", "may not specify more than 1 volume type"))
    needs = {
        "hostPath": ("path",),
        "nfs": ("server", "path"),
        "secret": ("secretName",),
        "configMap": ("name",),
        "persistentVolumeClaim": ("claimName",),
    }
    for source in sources:
        for key in needs.get(source, ()):
            if not (volume[source] or {}).get(key):
                causes.append(required(f"{at}.{source}.{key}"))
    path = (volume.get("nfs") or {}).get("path")
    if path and not path.startswith("/"):
        causes.append(wrong(f"{at}.nfs.path", path, "must be an absolute path"))
    if ".." in ((volume.get("hostPath") or {}).get("path") or "").split("/"):
        causes.append(wrong(f"{at}.hostPath.path", volume["hostPath"]["path"], "must not contain '..'"))
    if not causes:
        seen.add(volume["name"])
    return causes


def _container(container: Json, at: str, seen: set[str], volumes: set[str]) -> list[Cause]:
    causes = _name(container, f"{at}.name", seen)
    seen.add(container.get("name", ""))
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{at}.image"))
    elif image != image.strip():
        causes.append(wrong(f"{at}.image", image, "must not have leading or trailing whitespace"))
    if container.get("imagePullPolicy") not in PULL:
        causes.append(unsupported(f"{at}.imagePullPolicy", container.get("imagePullPolicy"), PULL))
    causes += _ports(container.get("ports") or [], f"{at}.ports")
    causes += _environment(container, at)
    causes += _resources(container.get("resources") or {}, f"{at}.resources")
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        field = f"{at}.volumeMounts[{index}]"
        if not mount.get("name"):
            causes.append(required(f"{field}.name"))
        elif mount["name"] not in volumes:
            causes.append(missing_reference(f"{field}.name", mount["name"]))
        path = mount.get("mountPath", "")
        if not path:
            causes.append(required(f"{field}.mountPath"))
        elif path in mounted:
            causes.append(wrong(f"{field}.mountPath", path, "must be unique"))
        mounted.add(path)
        if ".." in (mount.get("subPath") or "").split("/"):
            causes.append(wrong(f"{at}.volumeMounts.subPath", mount["subPath"], "must not contain '..'"))
    for kind in PROBES:
        if kind in container:
            causes += _probe(container[kind], f"{at}.{kind}", kind)
    for hook in ("postStart", "preStop"):
        if hook in (container.get("lifecycle") or {}):
            kinds = ("exec", "httpGet", "tcpSocket", "sleep")
            causes += _handler(container["lifecycle"][hook], f"{at}.lifecycle.{hook}", kinds)
    return causes


def _ports(ports: list[Json], at: str) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        field = f"{at}[{index}]"
        number = port.get("containerPort", 0)
        if not number:
            causes.append(required(f"{field}.containerPort"))
        else:
            causes += port_number(f"{field}.containerPort", number)
        if port.get("hostPort"):
            causes += port_number(f"{field}.hostPort", port["hostPort"])
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            causes.append(unsupported(f"{field}.protocol", port.get("protocol", ""), ("SCTP", "TCP", "UDP")))
        name = port.get("name")
        if name:
            causes += _port_name(f"{field}.name", name)
            if name in seen:
                causes.append(duplicate(f"{field}.name", name))
            seen.add(name)
    return causes


def _port_name(field: str, name: str) -> list[Cause]:
    good = re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", name) and re.search(r"[a-z]", name)
    if len(name) > 15:
        return [wrong(field, name, "must be no more than 15 characters")]
    if not good or "--" in name:
        return [wrong(field, name, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")]
    return []


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


def _environment(container: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, env in enumerate(container.get("env") or ()):
        field = f"{at}.env[{index}]"
        name = env.get("name", "")
        if not name:
            causes.append(required(f"{field}.name"))
        elif not ENV.fullmatch(name):
            causes.append(wrong(f"{field}.name", name, "a valid environment variable name must consist only of "
                                "printable ASCII characters other than '='"))  # fmt: skip
        source = env.get("valueFrom")
        if source is None:
            continue
        if env.get("value"):
            causes.append(wrong(f"{field}.valueFrom", "", "may not be specified when `value` is not empty"))
        kinds = [key for key in source if source[key] is not None]
        if len(kinds) != 1:
            many = "may not have more than one field specified at a time"
            if not kinds:
                listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
                many = f"must specify one of: {listed}"
            causes.append(wrong(f"{field}.valueFrom", "", many))
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if "fieldRef" in source and not path:
            causes.append(required(f"{field}.valueFrom.fieldRef.fieldPath"))
        elif path and not _field_path(path):
            causes.append(wrong(f"{field}.valueFrom.fieldRef.fieldPath", path, "error converting fieldPath: "
                                f"field label not supported: {path}"))  # fmt: skip
        for key in ("configMapKeyRef", "secretKeyRef"):
            if key in source:
                causes += [
                    required(f"{field}.valueFrom.{key}.{part}") for part in ("key",) if not source[key].get(part)
                ]
    return causes


def _field_path(path: str) -> bool:
    plain = (
        "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
        "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs", "metadata.labels", "metadata.annotations",
    )  # fmt: skip
    return path in plain or bool(re.fullmatch(r"metadata\.(?:labels|annotations)\['[^']+'\]", path))


def _resources(resources: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for group, values in (("limits", limits), ("requests", requests)):
        for name, amount in values.items():
            field = f"{at}.{group}[{name}]"
            value = value_of(amount)
            if value < 0:
                causes.append(wrong(field, amount, "must be greater than or equal to 0"))
            if "/" in name and value != int(value):
                causes.append(wrong(field, amount, "must be an integer"))
            if (
                "/" not in name
                and name not in ("cpu", "memory", "ephemeral-storage")
                and not name.startswith("hugepages-")
            ):
                for what in ("type or fully qualified", "for containers"):
                    causes.append(wrong(field, name, f"must be a standard resource {what}"))
    for name, amount in requests.items():
        if name in limits:
            if "/" in name and value_of(amount) != value_of(limits[name]):
                causes.append(wrong(f"{at}.requests", amount, f"must be equal to {name} limit of {limits[name]}"))
            elif value_of(amount) > value_of(limits[name]):
                why = f"must be less than or equal to {name} limit of {limits[name]}"
                causes.append(wrong(f"{at}.requests", amount, why))
        elif "/" in name and name not in limits:
            causes.append(required(f"{at}.limits", "Limit must be set for non overcommitable resources"))
    return causes


def _handler(handler: Json, at: str, kinds: tuple[str, ...]) -> list[Cause]:
    """What a probe or a hook does."""
    causes: list[Cause] = []
    found = [key for key in kinds if key in handler]
    for index, kind in enumerate(found):
        if index:
            causes.append(not_allowed(f"{at}.{kind}", "may not specify more than 1 handler type"))
        elif kind == "exec" and not (handler["exec"] or {}).get("command"):
            causes.append(required(f"{at}.exec.command"))
        elif kind in ("httpGet", "tcpSocket"):
            port, field = (handler[kind] or {}).get("port", 0), f"{at}.{kind}.port"
            causes += port_number(field, port) if isinstance(port, int) else _port_name(field, port)
    return causes if found else [required(at, "must specify a handler type")]


def _probe(probe: Json, at: str, kind: str) -> list[Cause]:
    causes = _handler(probe, at, ("exec", "httpGet", "tcpSocket", "grpc"))
    for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if probe.get(key, 0) < 0:
            causes.append(wrong(f"{at}.{key}", probe[key], "must be greater than or equal to 0"))
    if kind != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        causes.append(wrong(f"{at}.successThreshold", probe["successThreshold"], "must be 1"))
    return causes


def _toleration(toleration: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    operator = toleration.get("operator", "Equal")
    if operator not in ("Equal", "Exists"):
        causes.append(unsupported(f"{at}.operator", operator, ("Equal", "Exists")))
    if not toleration.get("key") and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(wrong(f"{at}.operator", operator, why))
    if operator == "Exists" and toleration.get("value"):
        causes.append(wrong(f"{at}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'"))
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        causes.append(wrong(f"{at}.effect", toleration.get("effect", ""), why))
    if toleration.get("effect") and toleration["effect"] not in EFFECTS:
        causes.append(unsupported(f"{at}.effect", toleration["effect"], EFFECTS))
    return causes


def _affinity(affinity: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        field = f"{at}.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
        for index, term in enumerate(
            (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        ):
            if not term.get("topologyKey"):
                causes.append(required(f"{field}[{index}].topologyKey", "can not be empty"))
            key = term.get("topologyKey", "")
            causes += [wrong(f"{field}[{index}].topologyKey", key, bad) for bad in names.key_problems(key)]
    node = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if node is not None and not node.get("nodeSelectorTerms"):
        field = f"{at}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        causes.append(required(field, "must have at least one node selector term"))
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
    causes = []
    for index, each in enumerate((new.get("status") or {}).get("podIPs") or ()):
        try:
            ipaddress.ip_address(each.get("ip", ""))
        except ValueError:
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(wrong(f"status.podIPs[{index}]", each.get("ip", ""), why))
    return causes


def hostname_warning(name: str) -> str:
    """A pod's name is its hostname; one that cannot be a host's is not refused."""
    bad = "must not contain dots" if "." in name else ""
    bad = bad or ("must be no more than 63 characters" if len(name) > 63 else "")
    why = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended"
    return f"metadata.name: {why}: [{bad}]" if bad else ""
