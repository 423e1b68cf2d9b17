"""The Node object: made when the node starts, kept honest afterwards; and its lease, the sign of life."""

from __future__ import annotations

import asyncio
import platform
import time

from onward import __version__
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.objects import LEASES, NAMESPACES, NODES, Obj, micro_stamp, stamp
from onward.local.plan import NodePlan, Plan
from onward.local.shim import linux
from onward.log import get_logger

log = get_logger("local.node")

LEASE_NAMESPACE = "kube-node-lease"
STATUS_S = 60.0
HEALTHY = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


class Registration:
    """`run()` in a task."""

    def __init__(self, client: Client, plan: Plan, node: NodePlan, kubelet_url: str) -> None:
        self._client, self._plan, self._node, self._url = client, plan, node, kubelet_url

    def _metadata(self) -> Obj:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        labels = {
            "kubernetes.io/hostname": self._node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": machine,
            **self._node.labels,
        }
        return {
            "name": self._node.name,
            "labels": labels,
            "annotations": {"onward.dev/kubelet": self._url, **self._node.annotations},
        }

    def _status(self, old: Obj | None) -> Obj:
        address = self._plan.node_address(self._node)
        port = int(self._url.rpartition(":")[2])
        before = {c["type"]: c for c in (old or {}).get("conditions") or []}
        conditions = [
            *((kind, "False", reason, text) for kind, reason, text in HEALTHY),
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]
        ours = [_condition(before.get(kind), kind, status, r, m) for kind, status, r, m in conditions]
        others = [c for kind, c in before.items() if kind not in {o["type"] for o in ours}]
        return {
            "capacity": self._node.capacity,
            "allocatable": self._node.capacity,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": self._node.name},
            ],
            "conditions": others + ours,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": "onward",
                "systemUUID": "onward",
                "bootID": linux.boot_id(),
                "kernelVersion": platform.release(),
                "osImage": "this machine",
                "containerRuntimeVersion": f"onward://{__version__}",
                "kubeletVersion": f"v1.35.0-onward.{__version__}",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": self._metadata()["labels"]["kubernetes.io/arch"],
            },
        }

    async def register(self) -> Obj:
        """Make the Node, or take over the one that is there: its labels and taints may have been changed since."""
        node: Obj = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": self._metadata(),
            "spec": {"podCIDR": self._plan.pod_cidr(self._node), "podCIDRs": [self._plan.pod_cidr(self._node)]},
        }
        if self._node.taints:
            node["spec"]["taints"] = self._node.taints
        try:
            await self._client.create(NODES, node)
        except ApiError as e:
            if e.code != 409:
                raise
            await self._client.patch(NODES, self._node.name, {"metadata": self._metadata()})
        return await self.post()

    async def post(self) -> Obj:
        current = await self._client.get(NODES, self._node.name)
        patch = {"status": self._status(current.get("status"))}
        return await self._client.patch(NODES, self._node.name, patch, sub="status")

    async def run(self) -> None:
        posted = time.monotonic()
        while True:
            try:
                await self._renew()
                if time.monotonic() - posted > STATUS_S or await self._said_not_ready():
                    await self.post()
                    posted = time.monotonic()
            except ApiError as e:
                if e.code == 404:  # somebody deleted the node: it is still here
                    await self._quietly_register()
                else:
                    log.warning("%s: %s", self._node.name, e)
            except Unreachable as e:
                log.info("%s: %s", self._node.name, e)
            await asyncio.sleep(self._plan.lease_s / 4)

    async def _quietly_register(self) -> None:
        try:
            await self.register()
        except (ApiError, Unreachable) as e:
            log.info("%s: %s", self._node.name, e)

    async def _said_not_ready(self) -> bool:
        """The node controller thought that we were gone."""
        node = await self._client.get(NODES, self._node.name)
        conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or []}
        return conditions.get("Ready") != "True"

    async def _renew(self) -> None:
        now = micro_stamp(time.time())
        spec = {
            "holderIdentity": self._node.name,
            "leaseDurationSeconds": int(self._plan.lease_s * 4),
            "renewTime": now,
        }
        try:
            await self._client.patch(LEASES, self._node.name, {"spec": spec}, LEASE_NAMESPACE)
            return
        except ApiError as e:
            if e.code != 404:
                raise
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node.name},
            "spec": spec,
        }
        try:
            await self._client.create(LEASES, lease, LEASE_NAMESPACE)
        except ApiError as e:
            if e.code != 404:
                raise
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
            await self._client.create(NAMESPACES, namespace)


def _condition(before: Obj | None, kind: str, status: str, reason: str, message: str) -> Obj:
    now = stamp(time.time())
    same = before is not None and before.get("status") == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": before["lastTransitionTime"] if same and before else now,
    }
