"""Validation of objects, all problems at once, in the real server's words. Pods: `pods.py`; CRDs: `definitions.py`."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Any

from onward.local.api import crds, definitions, names, pods, structural
from onward.local.api.registry import Registry, Resource
from onward.local.api.status import (
    Cause,
    Json,
    duplicate,
    not_allowed,
    required,
    unsupported,
    wrong,
)
from onward.local.api.store import Store

FINALIZERS_LATE = "no new finalizers can be added if the object is being deleted, found new finalizers "


def create(store: Store, registry: Registry, resource: Resource, body: Json) -> list[Cause]:
    """All problems of an object about to be created."""
    causes = names.check_meta(body["metadata"], resource.key)
    if resource.custom:
        causes += structural.validate(resource.raw_schema, body)
        return causes + structural.scale_problems(resource.scale_paths, body)
    if resource.key == "pods":
        pods.admit(store, body)
    causes += _own(resource, body)
    if resource.key == "services":
        causes += _free_address(store, body)
    return causes


def update(store: Store, registry: Registry, resource: Resource, new: Json, old: Json, subresource: str) -> list[Cause]:
    """All problems of a changed object; `old` is what is stored."""
    causes = names.check_meta(new["metadata"], resource.key)
    if new["metadata"].get("deletionTimestamp"):
        had = set(old["metadata"].get("finalizers") or ())
        late = [each for each in new["metadata"].get("finalizers") or () if each not in had]
        if late:
            listed = ", ".join(f'"{each}"' for each in late)
            causes.append(not_allowed("metadata.finalizers", FINALIZERS_LATE + f"[]string{{{listed}}}"))
    if resource.custom:
        known = set(structural.validate(resource.raw_schema, old))
        # What was wrong before and was not touched does not block other changes (validation ratcheting).
        found = structural.validate(resource.raw_schema, new, "", old)
        causes += [each for each in found if each not in known]
        return causes + structural.scale_problems(resource.scale_paths, new)
    if subresource in ("status", "finalize"):
        return causes + (pods.check_status(new) if resource.key == "pods" else [])
    causes += _own(resource, new)
    check = IMMUTABLE.get(resource.key)
    if check is not None and subresource != "binding":
        causes += check(new, old)
    return causes


def _own(resource: Resource, body: Json) -> list[Cause]:
    check = CHECKS.get(resource.key)
    return check(body) if check is not None else []


# -- single kinds ------------------------------------------------------------------------------------------------


def _key(field: str, key: str) -> list[Cause]:
    if len(key) > 253 or not re.fullmatch(r"[-._a-zA-Z0-9]+", key) or key in (".", ".."):
        why = (
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name', "
            " or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        )
        return [wrong(f"{field}[{key[:100]}]", key, why)]
    return []


def _config_map(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    data, binary = body.get("data") or {}, body.get("binaryData") or {}
    for field, values in (("data", data), ("binaryData", binary)):
        for key in values:
            causes += _key(field, key)
    for key in binary:
        if key in data:
            causes.append(wrong(f"data[{key}]", key, "duplicate of key present in binaryData"))
        causes += _base64(f"binaryData[{key}]", binary[key])
    if sum(len(key) + len(value) for each in (data, binary) for key, value in each.items()) > 1024 * 1024:
        causes.append(Cause("FieldValueTooLong", "Too long: may not be more than 1048576 bytes", ""))
    return causes


def _base64(field: str, value: str) -> list[Cause]:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return [wrong(field, value[:60], "illegal base64 data")]
    return []


def _secret(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    size = 0
    for key, value in (body.get("data") or {}).items():
        causes += _key("data", key) + _base64(f"data[{key}]", value)
        size += len(value) * 3 // 4
    if size > 1024 * 1024:
        causes.append(Cause("FieldValueTooLong", "Too long: may not be more than 1048576 bytes", "data"))
    needed = {
        "kubernetes.io/tls": ("tls.crt", "tls.key"),
        "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
        "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    }.get(body.get("type", ""), ())
    causes += [required(f"data[{key}]") for key in needed if key not in (body.get("data") or {})]
    return causes


def _service(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    spec = body.get("spec") or {}
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        causes.append(unsupported("spec.type", spec.get("type"), kinds))
    headless = spec.get("clusterIP") == "None"
    if not spec.get("ports") and not headless and spec.get("type") != "ExternalName":
        causes.append(required("spec.ports"))
    if spec.get("type") == "ExternalName" and not spec.get("externalName"):
        causes.append(required("spec.externalName"))
    seen: set[tuple[Any, Any]] = set()
    many = len(spec.get("ports") or ()) > 1
    named: set[str] = set()
    for index, port in enumerate(spec.get("ports") or ()):
        field = f"spec.ports[{index}]"
        if many and not port.get("name"):
            causes.append(required(f"{field}.name"))
        if port.get("name"):
            bad = names.label_problem(port["name"])
            if bad:
                causes.append(wrong(f"{field}.name", port["name"], bad))
            if port["name"] in named:
                causes.append(duplicate(f"{field}.name", port["name"]))
            named.add(port["name"])
        causes += pods.port_number(f"{field}.port", port.get("port", 0))
        if isinstance(port.get("targetPort"), int):
            causes += pods.port_number(f"{field}.targetPort", port["targetPort"])
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            causes.append(unsupported(f"{field}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP")))
        own = (port.get("protocol"), port.get("port"))
        if own in seen:
            causes.append(duplicate(field, {"port": own[1], "protocol": own[0]}))
        seen.add(own)
    if spec.get("sessionAffinity") not in ("ClientIP", "None"):
        causes.append(unsupported("spec.sessionAffinity", spec.get("sessionAffinity"), ("ClientIP", "None")))
    causes += names.check_labels(spec.get("selector") or {}, "spec.selector")
    address = spec.get("clusterIP")
    if address and address != "None":
        try:
            ipaddress.ip_address(address)
        except ValueError:
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(wrong("spec.clusterIPs[0]", address, why))
    return causes


def _free_address(store: Store, body: Json) -> list[Cause]:
    address = (body.get("spec") or {}).get("clusterIP")
    if address in (None, "", "None"):
        return []
    for _, item in store.all("services"):
        if (item.body.get("spec") or {}).get("clusterIP") == address:
            return [
                wrong(
                    "spec.clusterIPs", [address], f"failed to allocate IP {address}: provided IP is already allocated"
                )
            ]
    return _free_ports(store, body)


def _free_ports(store: Store, body: Json) -> list[Cause]:
    taken = {port.get("nodePort") for _, item in store.all("services") for port in item.body["spec"].get("ports") or ()}
    return [
        wrong(f"spec.ports[{index}].nodePort", port["nodePort"], "provided port is already allocated")
        for index, port in enumerate((body.get("spec") or {}).get("ports") or ())
        if port.get("nodePort") and port["nodePort"] in taken
    ]


def _service_change(new: Json, old: Json) -> list[Cause]:
    before, after = (old.get("spec") or {}).get("clusterIP"), (new.get("spec") or {}).get("clusterIP")
    if before and before != after and (new.get("spec") or {}).get("type") != "ExternalName":
        return [wrong("spec.clusterIPs[0]", [after], "may not change once set")]
    return []


def _workload(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    spec = body.get("spec") or {}
    if spec.get("replicas", 0) < 0:
        causes.append(wrong("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    selector, template = spec.get("selector"), spec.get("template") or {}
    if body["kind"] == "ReplicationController":
        selector = {"matchLabels": selector} if selector else None
    if body["kind"] != "Job":
        labels = (template.get("metadata") or {}).get("labels") or {}
        if not selector:
            causes.append(required("spec.selector"))
        if not selector or not names_match(selector, labels):
            why = "`selector` does not match template `labels`"
            causes.append(wrong("spec.template.metadata.labels", labels or None, why))
    causes += pods.check_spec(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    allowed = ("OnFailure", "Never") if body["kind"] == "Job" else ("Always",)
    if body["kind"] == "Job" and policy == "Always":
        causes.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    elif policy in pods.RESTART and policy not in allowed:
        causes.append(unsupported("spec.template.spec.restartPolicy", policy, allowed))
    return causes


def names_match(selector: Json, labels: Json) -> bool:
    from onward.local.api.selectors import selects

    return selects(selector, labels)


def _selector_change(new: Json, old: Json) -> list[Cause]:
    if (new.get("spec") or {}).get("selector") != (old.get("spec") or {}).get("selector"):
        return [wrong("spec.selector", (new.get("spec") or {}).get("selector"), "field is immutable")]
    return []


def _immutable_data(new: Json, old: Json) -> list[Cause]:
    causes: list[Cause] = []
    if old.get("immutable"):
        if not new.get("immutable"):
            causes.append(not_allowed("immutable", "field is immutable when `immutable` is set"))
        for key in ("data", "binaryData"):
            if new.get(key) != old.get(key):
                causes.append(not_allowed(key, "field is immutable when `immutable` is set"))
    if "type" in old and new.get("type") != old.get("type"):
        causes.append(wrong("type", new.get("type"), "field is immutable"))
    return causes


def _lease(body: Json) -> list[Cause]:
    spec = body.get("spec") or {}
    causes = []
    if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
        causes.append(wrong("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        causes.append(wrong("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return causes


def _event(body: Json) -> list[Cause]:
    involved, namespace = body.get("involvedObject") or {}, body["metadata"].get("namespace")
    where = involved.get("namespace") or "default"
    if where != namespace and not (not involved.get("namespace") and namespace == "default"):
        return [wrong("involvedObject.namespace", involved.get("namespace", ""), "does not match event.namespace")]
    return []


def _priority_class(body: Json) -> list[Cause]:
    name, value = body["metadata"].get("name", ""), body.get("value", 0)
    if value > 1_000_000_000 and not name.startswith("system-"):
        why = "maximum allowed value of a user defined priority is 1000000000"
        return [not_allowed("value", why)]
    return []


def _priority_change(new: Json, old: Json) -> list[Cause]:
    if new.get("value") != old.get("value"):
        return [not_allowed("value", "may not be changed in an update.")]
    return []


def _node(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    for index, taint in enumerate((body.get("spec") or {}).get("taints") or ()):
        field, key = f"metadata.taints[{index}]", taint.get("key", "")
        causes += [wrong(f"{field}.key", key, bad) for bad in names.key_problems(key)]
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if taint.get("effect") not in effects:
            causes.append(unsupported(f"{field}.effect", taint.get("effect", ""), effects))
    return causes


def _claim(body: Json) -> list[Cause]:
    spec = body.get("spec") or {}
    causes = [] if spec.get("accessModes") else [required("spec.accessModes", "at least 1 access mode is required")]
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        causes.append(required("spec.resources[storage]"))
    return causes


def _role(body: Json) -> list[Cause]:
    return [
        required(f"rules[{index}].verbs", "verbs must contain at least one value")
        for index, rule in enumerate(body.get("rules") or ())
        if not rule.get("verbs")
    ]


def _role_binding(body: Json) -> list[Cause]:
    kinds = ("Role", "ClusterRole") if body["kind"] == "RoleBinding" else ("ClusterRole",)
    kind, name = ((body.get("roleRef") or {}).get(key, "") for key in ("kind", "name"))
    causes = [] if kind in kinds else [unsupported("roleRef.kind", kind, kinds)]
    return causes + ([] if name else [required("roleRef.name")])


CHECKS: dict[str, Callable[[Json], list[Cause]]] = {
    "pods": lambda body: pods.check_spec(body.get("spec") or {}, "spec"),
    "configmaps": _config_map,
    "secrets": _secret,
    "services": _service,
    "nodes": _node,
    "persistentvolumeclaims": _claim,
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "statefulsets.apps": _workload,
    "daemonsets.apps": _workload,
    "replicationcontrollers": _workload,
    "jobs.batch": _workload,
    "leases.coordination.k8s.io": _lease,
    "events": _event,
    "roles.rbac.authorization.k8s.io": _role,
    "clusterroles.rbac.authorization.k8s.io": _role,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    crds.KEY: definitions.check,
}
IMMUTABLE: dict[str, Callable[[Json, Json], list[Cause]]] = {
    "pods": pods.check_update,
    "services": _service_change,
    "configmaps": _immutable_data,
    "secrets": _immutable_data,
    "deployments.apps": _selector_change,
    "replicasets.apps": _selector_change,
    "daemonsets.apps": _selector_change,
    "jobs.batch": _selector_change,
    "priorityclasses.scheduling.k8s.io": _priority_change,
}
