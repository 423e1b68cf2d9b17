"""Nodes that fall silent: marked, tainted, and after a while their pods are given up. Pods of nodes that are no more
are removed. The rules of Kubernetes' node lifecycle controller, with times that suit one machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from onward.core.placement import tolerates
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.events import EventRecorder
from onward.kube.informer import Informer
from onward.kube.objects import LEASES, NODES, PODS, Obj, key_of, name_of, namespace_of, read_stamp, stamp, uid_of
from onward.local.plan import Plan
from onward.log import get_logger

log = get_logger("local.nodes")

LEASE_NAMESPACE = "kube-node-lease"
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
CORDONED = "node.kubernetes.io/unschedulable"
DEFAULT_TOLERATION_S = 300
LOOK_S = 0.5

Mark = tuple[str, str, str]
"""A taint: node, key, value."""


class NodeLifecycle:
    def __init__(self, client: Client, plan: Plan) -> None:
        self._client, self._plan = client, plan
        self._nodes = Informer(client, NODES)
        self._pods = Informer(client, PODS)
        self._leases = Informer(client, LEASES, LEASE_NAMESPACE)
        self._events = EventRecorder(client, "node-controller")
        self._seen: dict[str, tuple[str, float]] = {}  # node -> its lease's version, when we first saw it
        self._tainted: dict[Mark, float] = {}  # when it began

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(i.run()) for i in (self._nodes, self._pods, self._leases, self._events)]
        try:
            await self._nodes.synced()
            await self._pods.synced()
            while True:
                for failed in [t for t in tasks if t.done()]:
                    failed.result()
                try:
                    await self._look()
                except (ApiError, Unreachable) as e:
                    log.info("nodes: %s; again soon", e)
                await asyncio.sleep(LOOK_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        silent = {name_of(node) for node in self._nodes if self._silent(node)}
        for node in self._nodes:
            await self._mark(node, name_of(node) in silent)
        self._tainted = taints_since(list(self._nodes), self._tainted, time.time())
        for pod in self._pods:
            await self._mind(pod)

    def _silent(self, node: Obj) -> bool:
        """By our own clock: how long its lease has not changed. After a start everybody has a fresh chance."""
        name, now = name_of(node), time.monotonic()
        lease = self._leases.get(f"{LEASE_NAMESPACE}/{name}")
        version = str(((lease or {}).get("spec") or {}).get("renewTime") or "")
        if name not in self._seen or self._seen[name][0] != version:
            self._seen[name] = (version, now)
        if not self._leases.healthy:  # we hear nothing at all: that says nothing of nodes
            self._seen[name] = (version, now)
        return now - self._seen[name][1] > self._plan.lease_s * 4

    async def _mark(self, node: Obj, silent: bool) -> None:
        conditions = (node.get("status") or {}).get("conditions") or []
        ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown")
        if silent and ready != "Unknown":
            await self._set_unknown(node, conditions)
            self._events.record(
                node, NODES, "Normal", "NodeNotReady", f"Node {name_of(node)} status is now: NodeNotReady"
            )
            ready = "Unknown"
        key = {"True": "", "False": NOT_READY, "Unknown": UNREACHABLE}[ready]
        await self._taint(node, key)

    async def _set_unknown(self, node: Obj, conditions: list[Obj]) -> None:
        now = stamp(time.time())
        changed = [
            {
                **c,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": now,
            }
            if c["type"] in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
            else c
            for c in conditions
        ]
        if not any(c["type"] == "Ready" for c in changed):
            changed.append({"type": "Ready", "status": "Unknown", "reason": "NodeStatusNeverUpdated"})
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "status": {"conditions": changed},
        }
        await self._client.patch(NODES, name_of(node), patch, sub="status")

    async def _taint(self, node: Obj, key: str) -> None:
        old = (node.get("spec") or {}).get("taints") or []
        ours = (UNREACHABLE, NOT_READY, CORDONED)
        wanted = [t for t in old if t["key"] not in ours]
        before = {(t["key"], t["effect"]): t for t in old}
        if key:
            for effect in ("NoSchedule", "NoExecute"):
                fresh = {"key": key, "effect": effect, "timeAdded": stamp(time.time())}
                wanted.append(before.get((key, effect), fresh))
        if (node.get("spec") or {}).get("unschedulable"):
            fresh = {"key": CORDONED, "effect": "NoSchedule", "timeAdded": stamp(time.time())}
            wanted.append(before.get((CORDONED, "NoSchedule"), fresh))
        if {(t["key"], t["effect"]) for t in wanted} == set(before):
            return
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": wanted or None},
        }
        try:
            await self._client.patch(NODES, name_of(node), patch)
        except ApiError as e:
            if e.code not in (404, 409):
                raise

    # Pods

    async def _mind(self, pod: Obj) -> None:
        host = pod["spec"].get("nodeName")
        if not host:
            return
        node = self._nodes.get(host)
        if node is None:
            await self._orphan(pod)
            return
        taints = [t for t in (node.get("spec") or {}).get("taints") or [] if t["effect"] == "NoExecute"]
        if not taints:
            return
        if any(t["key"] == UNREACHABLE for t in taints):
            await self._unready(pod)
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if over or pod["metadata"].get("deletionTimestamp"):
            return
        due = min((self._due(pod, taint) for taint in taints), default=float("inf"))
        if time.time() >= due:
            text = f"Marking for deletion Pod {key_of(pod)}"
            self._events.record(pod, PODS, "Normal", "TaintManagerEviction", text)
            await self._delete(pod, None)

    def _due(self, pod: Obj, taint: Obj) -> float:
        """When a taint drives a pod away: at once, after the time it tolerates it, or never. The time begins with
        the taint, or with the pod if that came later."""
        matching = [t for t in pod["spec"].get("tolerations") or [] if tolerates(t, taint)]
        if not matching:
            return 0.0
        times = [t.get("tolerationSeconds") for t in matching]
        bounded = [float(s) for s in times if s is not None]
        if not bounded:
            return float("inf")
        wait_s = min(bounded)
        if wait_s == DEFAULT_TOLERATION_S and taint["key"] in (UNREACHABLE, NOT_READY):
            wait_s = self._plan.evict_s
        begun = self._tainted.get(_mark(pod["spec"]["nodeName"], taint), time.time())
        return max(begun, read_stamp(pod["metadata"].get("creationTimestamp")) or 0.0) + wait_s

    async def _unready(self, pod: Obj) -> None:
        """What we know of a pod on a lost node: nothing. It must not count as ready."""
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return
        now = stamp(time.time())
        changed = [
            {**c, "status": "False", "reason": "NodeNotReady", "lastTransitionTime": now} if c["type"] == "Ready" else c
            for c in conditions
        ]
        try:
            patch = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": changed}}
            await self._client.patch(PODS, name_of(pod), patch, namespace_of(pod), sub="status")
        except ApiError as e:
            if e.code not in (404, 409):
                raise
        else:
            self._events.record(pod, PODS, "Warning", "NodeNotReady", "Node is not ready")

    async def _orphan(self, pod: Obj) -> None:
        """Its node exists no more: nobody else will ever remove it."""
        await self._delete(pod, 0)

    async def _delete(self, pod: Obj, grace: int | None) -> None:
        options: Obj = {"preconditions": {"uid": uid_of(pod)}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._client.delete(PODS, name_of(pod), namespace_of(pod), options)
        except ApiError as e:
            if e.code not in (404, 409):
                raise


def _mark(node: str, taint: Obj) -> Mark:
    return node, taint["key"], taint.get("value") or ""


def taints_since(nodes: list[Obj], before: Mapping[Mark, float], now: float) -> dict[Mark, float]:
    """When each taint that drives pods away began: as it says itself, or when we saw it (kubectl gives no time)."""
    found = {}
    for node in nodes:
        for taint in (node.get("spec") or {}).get("taints") or []:
            if taint["effect"] == "NoExecute":
                mark = _mark(name_of(node), taint)
                found[mark] = read_stamp(taint.get("timeAdded")) or before.get(mark, now)
    return found
