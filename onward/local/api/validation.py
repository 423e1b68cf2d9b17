"""Validation of objects, all problems at once, in the real server's words. Pods: `pods.py`; CRDs: `definitions.py`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from onward.local.api import crds, definitions, names, pods, services, structural
from onward.local.api.podplacement import check_selector
from onward.local.api.registry import Registry, Resource
from onward.local.api.status import (
    Cause,
    Json,
    not_allowed,
    required,
    shown,
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
        causes += services.check_free(store, body)
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
    bad = names.config_key_problem(key)
    return [wrong(f"{field}[{key[:100]}]", key[:300], bad)] if bad else []


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
    if body.get("type") == "kubernetes.io/basic-auth" and not {"username", "password"} & set(body.get("data") or {}):
        causes += [required("data[username]"), required("data[password]")]
    account = "kubernetes.io/service-account.name"
    if body.get("type") == "kubernetes.io/service-account-token":
        annotations = body["metadata"].get("annotations") or {}
        causes += [required(f"metadata.annotations[{account}]")] if not annotations.get(account) else []
    return causes


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
        bad = check_selector(selector, "spec.selector")
        causes += bad
        if selector is None:
            causes.append(required("spec.selector"))
        elif not selector and body["kind"] != "ReplicationController":
            why = f"empty selector is invalid for {body['kind'].lower()}"
            causes.append(wrong("spec.selector", {}, why))
        if not bad and selector != {} and (not selector or not names_match(selector, labels)):
            why = "`selector` does not match template `labels`"
            causes.append(wrong("spec.template.metadata.labels", labels or None, why))
    causes += pods.check_spec(template.get("spec") or {}, "spec.template.spec", template=True)
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
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate((body.get("spec") or {}).get("taints") or ()):
        field, key = f"metadata.taints[{index}]", taint.get("key", "")
        causes += [wrong(f"{field}.key", key, bad) for bad in names.key_problems(key)]
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if taint.get("effect") not in effects:
            causes.append(unsupported(f"{field}.effect", taint.get("effect", ""), effects))
        if (key, taint.get("effect")) in seen:
            why = f"Duplicate value: {shown(taint)}: taints must be unique by key and effect pair"
            causes.append(Cause("FieldValueDuplicate", why, field))
        seen.add((key, taint.get("effect")))
    return causes


def _budget(body: Json) -> list[Cause]:
    spec, causes = body.get("spec") or {}, list[Cause]()
    if "minAvailable" in spec and "maxUnavailable" in spec:
        given = {key: spec[key] for key in ("minAvailable", "maxUnavailable")}
        causes.append(wrong("spec", given, "minAvailable and maxUnavailable cannot be both set"))
    for key in ("minAvailable", "maxUnavailable"):
        if key in spec:
            causes += _share(spec[key], f"spec.{key}")
    return causes + check_selector(spec.get("selector"), "spec.selector")


def _share(value: int | str, field: str) -> list[Cause]:
    """A number of pods, or so many in a hundred."""
    if isinstance(value, int):
        return [wrong(field, value, "must be greater than or equal to 0")] if value < 0 else []
    if not re.fullmatch(r"[0-9]+%", value):
        why = (
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
            "regex used for validation is '[0-9]+%')"
        )
        return [wrong(field, value, why)]
    return [wrong(field, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []


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
    "services": services.check,
    "nodes": _node,
    "poddisruptionbudgets.policy": _budget,
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
    "services": services.check_update,
    "configmaps": _immutable_data,
    "secrets": _immutable_data,
    "deployments.apps": _selector_change,
    "replicasets.apps": _selector_change,
    "daemonsets.apps": _selector_change,
    "jobs.batch": _selector_change,
    "priorityclasses.scheduling.k8s.io": _priority_change,
}
