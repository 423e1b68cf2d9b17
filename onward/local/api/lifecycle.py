"""What the server itself does to objects over their life: status, generation, finalizers, the last moment."""

from __future__ import annotations

from typing import Any

from onward.local.api.clock import now_text
from onward.local.api.registry import Resource
from onward.local.api.store import clone

Json = dict[str, Any]

# Kinds whose status a user cannot set by creating or updating the object itself.
OWN_STATUS = {
    "pods", "services", "namespaces", "persistentvolumeclaims", "persistentvolumes", "replicationcontrollers",
    "resourcequotas", "daemonsets.apps", "deployments.apps", "replicasets.apps", "statefulsets.apps", "jobs.batch",
    "cronjobs.batch", "poddisruptionbudgets.policy", "customresourcedefinitions.apiextensions.k8s.io",
    "ingresses.networking.k8s.io",
}  # fmt: skip
# Kinds that count changes of their spec.
GENERATION = OWN_STATUS - {"services", "namespaces", "persistentvolumeclaims", "persistentvolumes", "resourcequotas"}
GENERATION = GENERATION | {
    "endpointslices.discovery.k8s.io", "networkpolicies.networking.k8s.io", "podtemplates",
    "priorityclasses.scheduling.k8s.io",
}  # fmt: skip


def has_status(resource: Resource) -> bool:
    return "status" in resource.subresources and (resource.custom or resource.key in OWN_STATUS)


def on_create(resource: Resource, body: Json) -> None:
    if has_status(resource):
        body.pop("status", None)
    if resource.custom or resource.key in GENERATION:
        body["metadata"]["generation"] = 1
    if resource.key == "namespaces":
        body["status"] = {"phase": "Active"}
        finalizers = body.setdefault("spec", {}).setdefault("finalizers", [])
        if "kubernetes" not in finalizers:
            finalizers.append("kubernetes")
    elif resource.key == "customresourcedefinitions.apiextensions.k8s.io":
        finalizers = body["metadata"].setdefault("finalizers", [])
        if "customresourcecleanup.apiextensions.k8s.io" not in finalizers:
            finalizers.append("customresourcecleanup.apiextensions.k8s.io")
    elif resource.key == "pods":
        body["status"] = {"phase": "Pending"}
        if (body.get("spec") or {}).get("schedulingGates"):
            gated = {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": now_text()}
            text = "Scheduling is blocked due to non-empty scheduling gates"
            body["status"]["conditions"] = [{**gated, "reason": "SchedulingGated", "message": text}]
    elif resource.key == "services":
        body["status"] = {"loadBalancer": {}}
    elif resource.key == "persistentvolumeclaims":
        body["status"] = {"phase": "Pending"}
    elif resource.key == "persistentvolumes":
        body["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now_text()}
    elif resource.key in ("deployments.apps", "daemonsets.apps", "jobs.batch", "cronjobs.batch"):
        body["status"] = {}
    elif resource.key in ("replicasets.apps", "statefulsets.apps", "replicationcontrollers"):
        body["status"] = {"replicas": 0}


def merge_update(resource: Resource, old: Json, wanted: Json, subresource: str) -> Json:
    """What of `wanted` this request may change: all but the status, or nothing but the status."""
    if subresource == "status":
        new = clone(old)
        if "status" in wanted:
            new["status"] = wanted["status"]
        else:
            new.pop("status", None)
        if not resource.custom:
            for key in ("labels", "annotations"):
                if key in wanted["metadata"]:
                    new["metadata"][key] = wanted["metadata"][key]
                else:
                    new["metadata"].pop(key, None)
        if "managedFields" in wanted["metadata"]:
            new["metadata"]["managedFields"] = wanted["metadata"]["managedFields"]
        return new
    if has_status(resource) and subresource not in ("binding", "eviction"):
        wanted.pop("status", None)
        if "status" in old:
            wanted["status"] = old["status"]
    if resource.key == "namespaces":
        wanted["status"] = old.get("status", {})
        if subresource != "finalize":
            wanted["spec"] = old.get("spec", {})
    return wanted


def bump_generation(resource: Resource, old: Json, new: Json) -> None:
    if not (resource.custom or resource.key in GENERATION):
        return
    ignored = ("metadata", "status") if has_status(resource) or not resource.custom else ("metadata",)
    changed = any(old.get(key) != new.get(key) for key in {*old, *new} if key not in ignored)
    if resource.key == "deployments.apps":
        changed |= old["metadata"].get("annotations") != new["metadata"].get("annotations")
    if changed:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def finished(body: Json) -> bool:
    """Marked for deletion and held by nobody any more."""
    meta = body["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if body["kind"] == "Namespace":
        return not (body.get("spec") or {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")
