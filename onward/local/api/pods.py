"""Validation of pods: the mistakes people make, found before anything is started."""

from __future__ import annotations

import re
from typing import Any

from onward.core.quantity import parse as value_of
from onward.local.api import names
from onward.local.api.decoding import QUANTITY
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
RESTART = ("Always", "Never", "OnFailure")
DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
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
    for group in ("initContainers", "containers"):
        for index, each in enumerate(spec.get(group) or ()):
            causes += _container(each, f"{at}.{group}[{index}]", seen, volumes)
    if spec.get("restartPolicy") not in RESTART:
        value = spec.get("restartPolicy", "")
        causes.append(unsupported(f"{at}.restartPolicy", value, RESTART) if value else required(f"{at}.restartPolicy"))
    if spec.get("dnsPolicy") not in DNS:
        causes.append(unsupported(f"{at}.dnsPolicy", spec.get("dnsPolicy", ""), DNS))
    for key in ("terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        least = 0 if key.startswith("term") else 1
        if key in spec and spec[key] < least:
            why = "must be greater than or equal to 0" if not least else "must be between 1 and 2147483647, inclusive"
            causes.append(wrong(f"{at}.{key}", spec[key], why))
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
    """The name of one of a list, each of which has its own; it is added to those `seen`."""
    name = named.get("name", "")
    bad = names.label_problem(name) if name else ""
    known = name in seen
    seen.add(name)
    if not name:
        return [required(at)]
    if bad:
        return [wrong(at, name, bad)]
    return [duplicate(at, name)] if known else []


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
    return causes


def _container(container: Json, at: str, seen: set[str], volumes: set[str]) -> list[Cause]:
    causes = _name(container, f"{at}.name", seen)
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
            causes.append(wrong(f"{field}.subPath", mount["subPath"], "must not contain '..'"))
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if kind in container:
            causes += _probe(container[kind], f"{at}.{kind}", kind)
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
            good = re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", name) and re.search(r"[a-z]", name)
            if len(name) > 15:
                causes.append(wrong(f"{field}.name", name, "must be no more than 15 characters long"))
            elif not good or "--" in name:
                why = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
                causes.append(wrong(f"{field}.name", name, why))
            if name in seen:
                causes.append(duplicate(f"{field}.name", name))
            seen.add(name)
    return causes


def _environment(container: Json, at: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, env in enumerate(container.get("env") or ()):
        field = f"{at}.env[{index}]"
        name = env.get("name", "")
        if not name:
            causes.append(required(f"{field}.name"))
        elif not ENV.fullmatch(name):
            causes.append(wrong(f"{field}.name", name, "a valid environment variable name consists only of printable "
                                "ASCII characters other than '='"))  # fmt: skip
        source = env.get("valueFrom")
        if source is None:
            continue
        if env.get("value"):
            causes.append(wrong(f"{field}.valueFrom", "", "may not be specified when `value` is not empty"))
        kinds = [key for key in source if source[key] is not None]
        if len(kinds) != 1:
            many = "may not have more than one field specified at a time"
            if not kinds:
                many = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
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
            if not QUANTITY.fullmatch(amount):
                causes.append(wrong(field, amount, "quantities must match the regular expression"))
                continue
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
                causes.append(
                    wrong(f"{at}.{group}[{name}]", name, "must be a standard resource type or fully qualified")
                )
    for name, amount in requests.items():
        if name in limits and QUANTITY.fullmatch(amount) and QUANTITY.fullmatch(limits[name]):
            if "/" in name and value_of(amount) != value_of(limits[name]):
                causes.append(wrong(f"{at}.requests", amount, f"must be equal to {name} limit of {limits[name]}"))
            elif value_of(amount) > value_of(limits[name]):
                why = f"must be less than or equal to {name} limit of {limits[name]}"
                causes.append(wrong(f"{at}.requests", amount, why))
        elif "/" in name and name not in limits:
            causes.append(required(f"{at}.limits", "Limit must be set for non overcommitable resources"))
    return causes


def _probe(probe: Json, at: str, kind: str) -> list[Cause]:
    causes: list[Cause] = []
    handlers = [key for key in ("exec", "httpGet", "tcpSocket", "grpc") if key in probe]
    if not handlers:
        causes.append(required(at, "must specify a handler type"))
    for extra in handlers[1:]:
        causes.append(not_allowed(f"{at}.{extra}", "may not specify more than 1 handler type"))
    for handler in ("httpGet", "tcpSocket"):
        if isinstance((probe.get(handler) or {}).get("port"), int):
            causes += port_number(f"{at}.{handler}.port", probe[handler]["port"])
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
        causes.append(wrong(f"{at}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
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
