"""What kubectl's columns say about each built-in kind.

`+` marks a column that only `-o wide` shows, `#` a number, `?` a boolean, `@` a date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.local.api.clock import age, duration, now, parse
from onward.local.api.podcolumns import ready_status_restarts
from onward.local.api.selectors import written

Json = dict[str, Any]
NONE = "<none>"
EVENTS = "events"


def _meta(body: Json) -> tuple[str, str]:
    meta = body["metadata"]
    return meta["name"], age(meta.get("creationTimestamp"))


def _pod(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    ready, reason, restarts = ready_status_restarts(body)
    gates = spec.get("readinessGates") or []
    good = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
    gated = f"{sum(g['conditionType'] in good for g in gates)}/{len(gates)}" if gates else NONE
    return [
        name, ready, reason, restarts, old, ((status.get("podIPs") or [{}])[0]).get("ip") or NONE,
        spec.get("nodeName") or NONE, status.get("nominatedNodeName") or NONE, gated,
    ]  # fmt: skip


def _node(body: Json) -> list[Any]:
    name, old = _meta(body)
    status, spec, labels = body.get("status") or {}, body.get("spec") or {}, body["metadata"].get("labels") or {}
    words = []
    for each in status.get("conditions") or ():
        if each["type"] == "Ready":
            words.append("Ready" if each["status"] == "True" else "NotReady")
    words = words or ["Unknown"]
    if spec.get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key[len(prefix) :] for key in labels if key.startswith(prefix))
    address = {each["type"]: each["address"] for each in status.get("addresses") or ()}
    info = status.get("nodeInfo") or {}
    unknown = "<unknown>"
    return [
        name, ",".join(words), ",".join(roles) or NONE, old, info.get("kubeletVersion", ""),
        address.get("InternalIP", NONE), address.get("ExternalIP", NONE), info.get("osImage") or unknown,
        info.get("kernelVersion") or unknown, info.get("containerRuntimeVersion") or unknown,
    ]  # fmt: skip


def _service(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    kind = spec.get("type", "ClusterIP")
    external = ",".join(spec.get("externalIPs") or ()) or NONE
    if kind == "ExternalName":
        external = spec.get("externalName", NONE)
    elif kind == "LoadBalancer":
        given = [
            each.get("ip") or each.get("hostname") for each in (status.get("loadBalancer") or {}).get("ingress") or ()
        ]
        external = ",".join(filter(None, given)) or "<pending>"
    ports = []
    for port in spec.get("ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    selector = ",".join(f"{k}={v}" for k, v in sorted((spec.get("selector") or {}).items()))
    return [name, kind, spec.get("clusterIP") or NONE, external, ",".join(ports) or NONE, old, selector or NONE]


def _event(body: Json) -> list[Any]:
    involved = body.get("involvedObject") or body.get("regarding") or {}
    source = body.get("source") or body.get("deprecatedSource") or {}
    first = body.get("firstTimestamp") or body.get("deprecatedFirstTimestamp") or body.get("eventTime")
    last = body.get("lastTimestamp") or body.get("deprecatedLastTimestamp") or first
    count = body.get("count") or body.get("deprecatedCount") or 1
    series = body.get("series")
    if series:
        last, count = series.get("lastObservedTime", last), series.get("count", count)
    subject = f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"
    who = source.get("component") or body.get("reportingComponent") or body.get("reportingController") or ""
    host = source.get("host") or ("" if source.get("component") else body.get("reportingInstance"))
    where = f"{who}, {host}" if host else who
    text = (body.get("message") or body.get("note") or "").strip()
    return [
        age(last or body["metadata"].get("creationTimestamp")), body.get("type", ""), body.get("reason", ""), subject,
        involved.get("fieldPath", ""), where, text, age(first or body["metadata"].get("creationTimestamp")), count,
        body["metadata"]["name"],
    ]  # fmt: skip


def _namespace(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, (body.get("status") or {}).get("phase", ""), old]


def _config_map(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, len(body.get("data") or {}) + len(body.get("binaryData") or {}), old]


def _secret(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, body.get("type", ""), len(body.get("data") or {}), old]


def _images(template: Json) -> tuple[str, str]:
    containers = (template.get("spec") or {}).get("containers") or []
    return ",".join(each["name"] for each in containers), ",".join(each.get("image", "") for each in containers)


def _deployment(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    names, images = _images(spec.get("template") or {})
    return [
        name, f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}", status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0), old, names, images, written(spec.get("selector") or {}),
    ]  # fmt: skip


def _replica_set(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    names, images = _images(spec.get("template") or {})
    raw = spec.get("selector") or {}
    chosen = written(raw if "matchLabels" in raw or "matchExpressions" in raw else {"matchLabels": raw})
    counts = [spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name, *counts, old, names, images, chosen]


def _stateful_set(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    names, images = _images(spec.get("template") or {})
    return [name, f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}", old, names, images]


def _daemon_set(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    names, images = _images(spec.get("template") or {})
    keys = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    where = (spec.get("template") or {}).get("spec", {}).get("nodeSelector") or {}
    chosen = ",".join(f"{k}={v}" for k, v in sorted(where.items())) or NONE
    return [name, *[status.get(k, 0) for k in keys], chosen, old, names, images, written(spec.get("selector") or {})]


def _job(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    state = "Running"
    for each in status.get("conditions") or ():
        if each["status"] == "True" and each["type"] in ("Complete", "Failed", "Suspended"):
            state = each["type"]
    done = f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}"
    start, end = parse(status.get("startTime", "")), parse(status.get("completionTime", ""))
    took = duration(((end or now()) - start).total_seconds()) if start else ""
    names, images = _images(spec.get("template") or {})
    return [name, state, done, took, old, names, images, written(spec.get("selector") or {})]


def _cron_job(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    last = age(status["lastScheduleTime"]) if status.get("lastScheduleTime") else NONE
    names, images = _images(((spec.get("jobTemplate") or {}).get("spec") or {}).get("template") or {})
    active, zone = len(status.get("active") or ()), spec.get("timeZone") or NONE
    suspended = str(bool(spec.get("suspend")))
    chosen = written(((spec.get("jobTemplate") or {}).get("spec") or {}).get("selector") or {}) or NONE
    return [name, spec.get("schedule", ""), zone, suspended, active, last, old, names, images, chosen]


def _lease(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, (body.get("spec") or {}).get("holderIdentity", ""), old]


def _endpoints(body: Json) -> list[Any]:
    name, old = _meta(body)
    found = []
    for subset in body.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or [None]
            found += [f"{address['ip']}:{port['port']}" if port else address["ip"] for port in ports]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [name, shown or NONE, old]


def _slice(body: Json) -> list[Any]:
    name, old = _meta(body)
    ports = ",".join(str(port.get("port", "*")) for port in body.get("ports") or ()) or "<unset>"
    found = [address for each in body.get("endpoints") or () for address in each.get("addresses") or ()]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [name, body.get("addressType", ""), ports, shown or "<unset>", old]


def _priority_class(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, body.get("value", 0), bool(body.get("globalDefault")), old, body.get("preemptionPolicy", "")]


def _budget(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    least, most = spec.get("minAvailable", "N/A"), spec.get("maxUnavailable", "N/A")
    return [name, str(least), str(most), status.get("disruptionsAllowed", 0), old]


MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(spec: Json) -> str:
    return ",".join(MODES.get(each, each) for each in spec.get("accessModes") or ())


def _claim(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    size = (status.get("capacity") or {}).get("storage", "")
    phase = "Terminating" if body["metadata"].get("deletionTimestamp") else status.get("phase", "")
    more = [spec.get("storageClassName", ""), spec.get("volumeAttributesClassName", "<unset>"), old]
    return [
        name,
        phase,
        spec.get("volumeName", ""),
        size,
        _modes(spec) if size else "",
        *more,
        spec.get("volumeMode", ""),
    ]


def _volume(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    claim = spec.get("claimRef") or {}
    bound = f"{claim.get('namespace')}/{claim.get('name')}" if claim else ""
    size = (spec.get("capacity") or {}).get("storage", "")
    return [
        name, size, _modes(spec), spec.get("persistentVolumeReclaimPolicy", ""), status.get("phase", ""), bound,
        spec.get("storageClassName", ""), spec.get("volumeAttributesClassName", "<unset>"), status.get("reason", ""),
        old, spec.get("volumeMode", ""),
    ]  # fmt: skip


def _ingress(body: Json) -> list[Any]:
    name, old = _meta(body)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    hosts = ",".join(rule.get("host") or "*" for rule in spec.get("rules") or ()) or "*"
    given = (status.get("loadBalancer") or {}).get("ingress") or ()
    address = ",".join(each.get("ip") or each.get("hostname") or "" for each in given)
    return [name, spec.get("ingressClassName") or NONE, hosts, address, "80, 443" if spec.get("tls") else "80", old]


def _network_policy(body: Json) -> list[Any]:
    name, old = _meta(body)
    return [name, written((body.get("spec") or {}).get("podSelector") or {}) or NONE, old]


def _storage_class(body: Json) -> list[Any]:
    name, old = _meta(body)
    grows = bool(body.get("allowVolumeExpansion"))
    kept = [body.get("provisioner", ""), body.get("reclaimPolicy", ""), body.get("volumeBindingMode", "")]
    return [name, *kept, grows, old]


def _quota(body: Json) -> list[Any]:
    name, old = _meta(body)
    status = body.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    shown = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = ", ".join(text for key, text in shown.items() if key.startswith("limits"))
    return [name, ", ".join(text for key, text in shown.items() if not key.startswith("limits")), limits, old]


def _revision(body: Json) -> list[Any]:
    name, old = _meta(body)
    owner = next((each for each in body["metadata"].get("ownerReferences") or () if each.get("controller")), None)
    group = f".{owner['apiVersion'].rpartition('/')[0]}" if owner and "/" in owner["apiVersion"] else ""
    who = f"{owner['kind'].lower()}{group}/{owner['name']}" if owner else NONE
    return [name, who, body.get("revision", 0), old]


def _pod_template(body: Json) -> list[Any]:
    template = body.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    shown = ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE
    return [body["metadata"]["name"], *_images(template), shown]


def _created(body: Json) -> list[Any]:
    return [body["metadata"]["name"], body["metadata"].get("creationTimestamp")]


def _binding(body: Json) -> list[Any]:
    name, old = _meta(body)
    role = body.get("roleRef") or {}
    who: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for each in body.get("subjects") or ():
        place = f"{each['namespace']}/" if each.get("namespace") else ""
        who.setdefault(each.get("kind", ""), []).append(place + each.get("name", ""))
    shown = [", ".join(who[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [name, f"{role.get('kind')}/{role.get('name')}", old, *shown]


COLUMNS: dict[str, tuple[str, Callable[[Json], list[Any]]]] = {
    "pods": ("Name|Ready|Status|Restarts|Age|IP+|Node+|Nominated Node+|Readiness Gates+", _pod),
    "nodes": (
        "Name|Status|Roles|Age|Version|Internal-IP+|External-IP+|OS-Image+|Kernel-Version+|Container-Runtime+", _node,
    ),
    "services": ("Name|Type|Cluster-IP|External-IP|Port(s)|Age|Selector+", _service),
    EVENTS: ("Last Seen|Type|Reason|Object|Subobject+|Source+|Message|First Seen+|Count+|Name+", _event),
    "namespaces": ("Name|Status|Age", _namespace),
    "limitranges": ("Name|Created At@", _created),
    "podtemplates": ("Name|Containers|Images|Pod Labels", _pod_template),
    "resourcequotas": ("Name|Request|Limit|Age", _quota),
    "controllerrevisions.apps": ("Name|Controller|Revision|Age", _revision),
    "configmaps": ("Name|Data|Age", _config_map),
    "secrets": ("Name|Type|Data|Age", _secret),
    "endpoints": ("Name|Endpoints|Age", _endpoints),
    "persistentvolumeclaims": (
        "Name|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|VolumeMode+", _claim,
    ),
    "persistentvolumes": (
        "Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|VolumeAttributesClass|Reason|Age"
        "|VolumeMode+",
        _volume,
    ),
    "replicationcontrollers": ("Name|Desired#|Current#|Ready#|Age|Containers+|Images+|Selector+", _replica_set),
    "deployments.apps": ("Name|Ready|Up-to-date|Available|Age|Containers+|Images+|Selector+", _deployment),
    "replicasets.apps": ("Name|Desired#|Current#|Ready#|Age|Containers+|Images+|Selector+", _replica_set),
    "statefulsets.apps": ("Name|Ready|Age|Containers+|Images+", _stateful_set),
    "daemonsets.apps": (
        "Name|Desired#|Current#|Ready#|Up-to-date#|Available#|Node Selector|Age|Containers+|Images+|Selector+",
        _daemon_set,
    ),
    "ingresses.networking.k8s.io": ("Name|Class|Hosts|Address|Ports|Age", _ingress),
    "networkpolicies.networking.k8s.io": ("Name|Pod-Selector|Age", _network_policy),
    "storageclasses.storage.k8s.io": (
        "Name|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age", _storage_class,
    ),
    "roles.rbac.authorization.k8s.io": ("Name|Created At@", _created),
    "clusterroles.rbac.authorization.k8s.io": ("Name|Created At@", _created),
    "rolebindings.rbac.authorization.k8s.io": ("Name|Role|Age|Users+|Groups+|ServiceAccounts+", _binding),
    "clusterrolebindings.rbac.authorization.k8s.io": ("Name|Role|Age|Users+|Groups+|ServiceAccounts+", _binding),
    "jobs.batch": ("Name|Status|Completions|Duration|Age|Containers+|Images+|Selector+", _job),
    "cronjobs.batch": (
        "Name|Schedule|Timezone|Suspend?|Active#|Last Schedule|Age|Containers+|Images+|Selector+", _cron_job,
    ),
    "leases.coordination.k8s.io": ("Name|Holder|Age", _lease),
    "endpointslices.discovery.k8s.io": ("Name|AddressType|Ports|Endpoints|Age", _slice),
    "customresourcedefinitions.apiextensions.k8s.io": ("Name|Created At@", _created),
    "priorityclasses.scheduling.k8s.io": ("Name|Value#|Global-Default?|Age|PreemptionPolicy", _priority_class),
    "poddisruptionbudgets.policy": ("Name|Min Available|Max Unavailable|Allowed Disruptions#|Age", _budget),
}  # fmt: skip
