"""The rank table: a JSON file that tells collective libraries without a rendezvous where every rank is.

It is written for jobs that ask for it: by a volume called `ranktable` (a directory on the operator's machine that pods
share), or by a ConfigMap `rings-config-<job>` that the user has made. Everything else finds its peers by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from onward.api.job import Job
from onward.api.pods import RANK_INDEX

FILE, VERSION_FILE = "hccl.json", "version"
VOLUME = "ranktable"
ROOT = "/user/mindx-dl/ranktable"
INITIALIZING, COMPLETED = "initializing", "completed"
SCHEMA = "1.0"
DEVICE_INFO = (
    "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
)


def wants_file(job: Job) -> bool:
    """A volume of that name, in any pod template."""
    return any(
        volume.get("name") == VOLUME
        for replica in job.replicas
        for volume in replica.template["spec"].get("volumes") or ()
    )


def directory(job: Job) -> str:
    """Where the file goes: a directory of the job's own below the shared one."""
    return f"{ROOT}/{job.namespace}.{job.name}"


def rank_table(job: Job, pods: Iterable[Mapping[str, Any]]) -> str | None:
    """The content of `hccl.json`; None: leave what is there, a stand-in makes them one too many."""
    ready = [pod for pod in pods if _allocated(job, pod)]
    if len(ready) > job.nodes:
        return None
    if len(ready) < job.nodes or not job.nodes:
        return json.dumps({"status": INITIALIZING, "version": SCHEMA})
    servers = [_server(job, pod) for pod in sorted(ready, key=_rank)]
    table = {
        "status": COMPLETED,
        "server_list": servers,
        "server_count": str(len(servers)),
        "version": SCHEMA,
    }
    return json.dumps(table)


def _allocated(job: Job, pod: Mapping[str, Any]) -> bool:
    """It holds ranks, has an address, and its devices are known."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    if metadata.get("deletionTimestamp") or RANK_INDEX not in annotations or not status.get("podIP"):
        return False
    if status.get("phase") in ("Failed", "Succeeded"):
        return False
    return not job.device[0].startswith("huawei.com/") or bool(_devices(job, pod))


def _rank(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["annotations"][RANK_INDEX])


def _server(job: Job, pod: Mapping[str, Any]) -> dict[str, Any]:
    status, node = pod["status"], _rank(pod)
    devices = _devices(job, pod) or [{"device_id": str(n), "device_ip": ""} for n in range(max(job.device[1], 1))]
    info = _info(pod)
    return {
        "server_id": str(info.get("server_id") or status.get("hostIP") or ""),
        "host_ip": str(info.get("host_ip") or status.get("hostIP") or ""),
        "container_ip": str(status["podIP"]),
        "device": [{**device, "rank_id": str(node * len(devices) + i)} for i, device in enumerate(devices)],
    }


def _info(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What the vendor's device plugin has written down."""
    annotations = pod["metadata"].get("annotations") or {}
    text = next((annotations[key] for key in DEVICE_INFO if annotations.get(key)), "")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _devices(job: Job, pod: Mapping[str, Any]) -> list[dict[str, str]]:
    """Numbers and addresses of the pod's devices; where there is no plugin, `Ascend910-0,Ascend910-1` gives numbers."""
    listed = _info(pod).get("devices")
    if isinstance(listed, list) and listed:
        return [
            {"device_id": str(d.get("device_id", "")), "device_ip": str(d.get("device_ip", ""))}
            for d in listed
            if isinstance(d, dict)
        ]
    annotations = pod["metadata"].get("annotations") or {}
    names = [part.strip() for part in str(annotations.get(job.device[0], "")).split(",") if part.strip()]
    return [{"device_id": name.rpartition("-")[2], "device_ip": ""} for name in names]
