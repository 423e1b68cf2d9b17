"""Defaults of built-in kinds, as the real server fills them in (custom kinds: `structural.py`)."""

from __future__ import annotations

import base64
import ipaddress
from typing import Any

from onward.core.quantity import amount, parse, write
from onward.local.api.registry import Resource
from onward.local.api.settings import Settings
from onward.local.api.status import forbidden
from onward.local.api.store import Store

Json = dict[str, Any]
NODE_PORTS = 2768
"""30000..32767, as on a stock cluster."""
HOUR_S = 3600
STICKY_S = 3 * HOUR_S


def fill(resource: Resource, body: Json) -> None:
    """The defaults of a kind, for what the user left out. Who writes the object owns them."""
    if resource.custom:
        from onward.local.api import structural

        structural.default(resource.raw_schema, body)
        return
    found = FILLS.get(resource.key)
    if found is not None:
        found(body)


def admit(store: Store, settings: Settings, resource: Resource, body: Json, old: Json | None = None) -> None:
    """What the server adds beyond that, for reasons of the cluster. `old` is the stored object on updates."""
    if resource.key == "pods" and old is None:
        _admit_pod(store, body)
    elif resource.key == "pods":
        _tolerate(body["spec"])
    elif resource.key == "services":
        _addresses(store, settings, body, old)
    elif resource.key == "jobs.batch" and old is None:
        _job_selector(body)


def _pod_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if "serviceAccount" in spec and "serviceAccountName" not in spec:
        spec["serviceAccountName"] = spec["serviceAccount"]
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        _container(container)
    for volume in spec.get("volumes", ()):
        _volume(volume)


def _container(container: Json) -> None:
    image = container.get("image", "")
    container.setdefault("imagePullPolicy", _pull_policy(image))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for env in container.get("env", ()):
        _reference(env.get("valueFrom") or {})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _probe(container[name])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            hook["httpGet"].setdefault("path", "/")
            hook["httpGet"].setdefault("scheme", "HTTP")


def _pull_policy(image: str) -> str:
    """A moving tag is looked up each time."""
    named, _, digest = image.partition("@")
    tag = named.rsplit("/", 1)[-1].partition(":")[2]
    return "Always" if tag == "latest" or (not tag and not digest) else "IfNotPresent"


def _probe(probe: Json) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        if not probe.get(name):
            probe[name] = value
    if "httpGet" in probe:
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _volume(volume: Json) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if name in volume:
            volume[name].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    items = [(volume.get("downwardAPI") or {}).get("items") or []]
    for source in (volume.get("projected") or {}).get("sources", ()):
        items.append((source.get("downwardAPI") or {}).get("items") or [])
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", HOUR_S)
    for item in [each for part in items for each in part]:
        _reference(item)
    if "image" in volume:
        volume["image"].setdefault("pullPolicy", _pull_policy(volume["image"].get("reference", "")))
    claim = ((volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}).get("spec")
    if claim is not None:
        claim.setdefault("volumeMode", "Filesystem")


def _reference(source: Json) -> None:
    """A field of the pod, or of what a container asks for."""
    if "fieldRef" in source:
        source["fieldRef"].setdefault("apiVersion", "v1")
    if "resourceFieldRef" in source:
        source["resourceFieldRef"].setdefault("divisor", "0")


def _admit_pod(store: Store, body: Json) -> None:
    """What admission plugins of a stock cluster add to a new pod."""
    spec = body["spec"] = body.get("spec") or {}
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    name, item = spec.get("priorityClassName"), None
    if name:
        item = store.get(("priorityclasses.scheduling.k8s.io", "", name))
    else:
        for _, each in store.all("priorityclasses.scheduling.k8s.io"):
            if each.body.get("globalDefault"):
                item = each
                spec["priorityClassName"] = each.body["metadata"]["name"]
    priority = int(item.body.get("value", 0)) if item else spec.get("priority", 0) if name else 0
    policy = item.body.get("preemptionPolicy", "PreemptLowerPriority") if item else "PreemptLowerPriority"
    _only_by_class(body, "priority", "integer value of priority", priority)
    _only_by_class(body, "preemptionPolicy", "string value of PreemptionPolicy", policy)
    _tolerate(spec)
    body["status"]["qosClass"] = quality(spec)


def _only_by_class(body: Json, key: str, what: str, value: Any) -> None:
    """What a PriorityClass decides cannot be written into a pod."""
    given = body["spec"].get(key, value)
    if given != value:
        why = f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed {value}"
        raise forbidden("", "pods", body["metadata"].get("name", ""), f"{why} from the given PriorityClass name")
    body["spec"][key] = value


def _tolerate(spec: Json) -> None:
    """A pod stays for five minutes on a node that is lost."""
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates(each, key) for each in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def quality(spec: Json) -> str:
    """The pod's quality-of-service class."""
    holders = [*spec.get("containers", ()), *spec.get("initContainers", ())]
    if spec.get("resources"):
        holders = [spec]  # one budget for all
    guaranteed, any_set = True, False
    for each in holders:
        resources = each.get("resources") or {}
        limits, requests = (_positive(resources.get(key) or {}) for key in ("limits", "requests"))
        any_set |= bool(limits or requests)
        for name in ("cpu", "memory"):
            guaranteed &= name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not any_set else "Guaranteed" if guaranteed else "Burstable"


def _positive(amounts: Json) -> Json:
    return {name: parse(amounts[name]) for name in ("cpu", "memory") if name in amounts and parse(amounts[name]) > 0}


def _pod(body: Json) -> None:
    spec, status = body.setdefault("spec", {}), body.get("status") or {}
    if status.get("podIP") and not status.get("podIPs"):
        status["podIPs"] = [{"ip": status["podIP"]}]
    elif status.get("podIPs") and not status.get("podIP"):
        status["podIP"] = status["podIPs"][0].get("ip", "")
    _pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        resources = container["resources"]
        for name, value in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)
        for port in container.get("ports", ()) if spec.get("hostNetwork") else ():
            port.setdefault("hostPort", port.get("containerPort"))
    if (spec.get("resources") or {}).get("limits"):
        spec["resources"]["requests"] = _asked_together(spec)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1


def _asked_together(spec: Json) -> Json:
    """What a pod with limits for all its containers together asks for."""
    own, asked = spec["resources"], dict(spec["resources"].get("requests") or {})
    for name in ("cpu", "memory"):
        given = [(each.get("resources") or {}).get("requests") or {} for each in spec.get("containers", ())]
        total = sum(amount(name, each[name]) for each in given if name in each)
        if total:
            asked.setdefault(name, write(name, total))
    for name, value in own["limits"].items():
        asked.setdefault(name, value)
    return asked


def _template(body: Json) -> None:
    spec = body.setdefault("spec", {})
    if body["kind"] != "ReplicationController":
        spec.setdefault("template", {})
    if "template" in spec:
        _pod_spec(spec["template"].setdefault("spec", {}))
        spec["template"].setdefault("metadata", {})


def _deployment(body: Json) -> None:
    _template(body)
    spec = body["spec"]
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _replicas(body: Json) -> None:
    _template(body)
    body["spec"].setdefault("replicas", 1)


def _stateful_set(body: Json) -> None:
    _replicas(body)
    spec = body["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    kept = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for when in ("whenDeleted", "whenScaled"):
        kept.setdefault(when, "Retain")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {"type": "RollingUpdate"})
    if strategy.get("type") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)


def _daemon_set(body: Json) -> None:
    _template(body)
    spec = body["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})


def _job(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("backoffLimit", 6)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    _template(body)


def _job_selector(body: Json) -> None:
    """A job finds its pods by its own uid."""
    spec, uid = body["spec"], body["metadata"].get("uid", "")
    if not spec.get("manualSelector") and uid:
        labels = {"batch.kubernetes.io/controller-uid": uid}
        spec.setdefault("selector", {"matchLabels": labels})
        if "template" in spec:
            name = body["metadata"].get("name", "")
            more = {"controller-uid": uid, "batch.kubernetes.io/job-name": name, "job-name": name, **labels}
            found = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
            for key, value in more.items():
                found.setdefault(key, value)


def _cron_job(body: Json) -> None:
    spec = body.setdefault("spec", {})
    for key, value in (
        ("concurrencyPolicy", "Allow"), ("suspend", False), ("successfulJobsHistoryLimit", 3),
        ("failedJobsHistoryLimit", 1),
    ):  # fmt: skip
        spec.setdefault(key, value)
    inner = (spec.get("jobTemplate") or {}).get("spec") or {}
    if "template" in inner:
        _pod_spec(inner["template"].setdefault("spec", {}))


def _secret(body: Json) -> None:
    body.setdefault("type", "Opaque")
    for key, value in (body.pop("stringData", None) or {}).items():
        body.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def _claim(body: Json) -> None:
    body.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _volume_object(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")


def _storage_class(body: Json) -> None:
    body.setdefault("reclaimPolicy", "Delete")
    body.setdefault("volumeBindingMode", "Immediate")


def _priority_class(body: Json) -> None:
    body.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _role_binding(body: Json) -> None:
    body.get("roleRef", {}).setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in body.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _endpoint_slice(body: Json) -> None:
    for port in body.get("ports", ()):
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _endpoints(body: Json) -> None:
    for port in [port for subset in body.get("subsets") or () for port in subset.get("ports") or ()]:
        port.setdefault("protocol", "TCP")


def _limit_range(body: Json) -> None:
    for each in (body.get("spec") or {}).get("limits") or ():
        if each.get("type") == "Container":
            usual = {**(each.get("max") or {}), **(each.get("default") or {})}
            asked = {**usual, **(each.get("min") or {}), **(each.get("defaultRequest") or {})}
            each.update({key: value for key, value in (("default", usual), ("defaultRequest", asked)) if value})


def _network_policy(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("policyTypes", ["Ingress", *(["Egress"] if spec.get("egress") else [])])


def _crd(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")


def _service(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort") and "port" in port:
            port["targetPort"] = port["port"]
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["sessionAffinity"] == "ClientIP":
        sticky = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        sticky.setdefault("timeoutSeconds", STICKY_S)
    elif spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)


def _event(body: Json) -> None:
    body.setdefault("reportingComponent", "")
    body.setdefault("reportingInstance", "")
    body.setdefault("source", {})


def _namespace(body: Json) -> None:
    if body["metadata"].get("name"):
        body["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = body["metadata"]["name"]


def _node(body: Json) -> None:
    spec, status = body.setdefault("spec", {}), body.setdefault("status", {})
    if spec.get("podCIDR") and not spec.get("podCIDRs"):
        spec["podCIDRs"] = [spec["podCIDR"]]
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


FILLS = {
    "pods": _pod,
    "services": _service,
    "namespaces": _namespace,
    "nodes": _node,
    "podtemplates": lambda body: _pod_spec(body.setdefault("template", {}).setdefault("spec", {})),
    "deployments.apps": _deployment,
    "replicasets.apps": _replicas,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "replicationcontrollers": _replicas,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "secrets": _secret,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume_object,
    "storageclasses.storage.k8s.io": _storage_class,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
    "endpoints": _endpoints,
    "limitranges": _limit_range,
    "networkpolicies.networking.k8s.io": _network_policy,
    "endpointslices.discovery.k8s.io": _endpoint_slice,
    "customresourcedefinitions.apiextensions.k8s.io": _crd,
    "events": _event,
}


def _addresses(store: Store, settings: Settings, body: Json, old: Json | None) -> None:
    spec = body["spec"]
    if spec["type"] == "ExternalName":
        return
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _node_ports(store, spec, old)
    if not spec.get("clusterIP"):
        previous = ((old or {}).get("spec") or {}).get("clusterIP")
        spec["clusterIP"] = previous or _free_address(store, settings)
    spec.setdefault("clusterIPs", [spec["clusterIP"]])


def _node_ports(store: Store, spec: Json, old: Json | None) -> None:
    """Each port of a NodePort service gets one of 30000..32767, and keeps it."""
    kept = {port["port"]: port.get("nodePort") for port in ((old or {}).get("spec") or {}).get("ports") or ()}
    taken = {port.get("nodePort") for _, item in store.all("services") for port in item.body["spec"].get("ports") or ()}
    for port in spec.get("ports") or ():
        if not port.get("nodePort"):
            port["nodePort"] = kept.get(port.get("port")) or _free_port(store, taken)
        taken.add(port["nodePort"])


def _free_port(store: Store, taken: set[Any]) -> int:
    for _ in range(NODE_PORTS):
        store.node_port = store.node_port % NODE_PORTS + 1  # only moves on, like the addresses below
        if 29999 + store.node_port not in taken:
            return 29999 + store.node_port
    return 0


def _free_address(store: Store, settings: Settings) -> str:
    """The first address of the range nobody has. Taken ones are remembered until their service is durable."""
    network = ipaddress.ip_network(settings.service_range)
    taken = {(item.body.get("spec") or {}).get("clusterIP") for _, item in store.all("services")}
    size = network.num_addresses - 2
    for _ in range(size):
        # A counter that only moves on: two services being created at once never get the same address.
        store.address = store.address % size + 1
        found = str(network[store.address])
        if found not in taken:
            return found
    return "None"
