"""The node agent: what the API says should run here, and what does, brought together pod by pod.

One function looks at one pod and does the next thing, whatever happened before: that is how it can be killed anywhere.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

from onward.kube.client import ApiError, Client
from onward.kube.events import EventRecorder
from onward.kube.informer import Informer
from onward.kube.objects import CONFIGMAPS, PODS, SECRETS, SERVICES, Obj, key_of, split_key, uid_of
from onward.kube.queue import WorkQueue, work
from onward.local.node import devices, environment, podstatus, volumes
from onward.local.node import recipe as recipes
from onward.local.node.accounts import with_token
from onward.local.node.references import TokenRequest, fetch_objects, fetch_tokens, needed, tokens_last_s
from onward.local.node.register import Registration
from onward.local.node.sandbox import Full, Local, Sandboxes, ports_in_use
from onward.local.plan import NodePlan, Plan
from onward.local.shim import linux
from onward.local.wiring import WiringError
from onward.log import get_logger

log = get_logger("local.node")

RETRY_S = 2.0
WORKERS = 8
ORDER_S = 10.0
STOP_MARGIN_S = 5.0  # a shim that has not ended its pod so long after the grace period is ended with it


class Agent:
    """`run(client)` for as long as the API can be reached; call it again after a cut."""

    def __init__(self, state: Path, plan: Plan, node: NodePlan, kubelet_url: str) -> None:
        self._state, self._plan, self._node, self._url = state, plan, node, kubelet_url
        self._sandboxes = Sandboxes(state, plan, node)
        self._devices = devices.Devices(state / "nodes" / node.name / "devices.json", node.capacity)
        self.locals: dict[str, Local] = {}
        self._addressing = asyncio.Lock()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._images: set[str] = set()
        self._problems: dict[str, tuple[str, str, str]] = {}
        self._posted: dict[str, str] = {}
        self.changed = asyncio.Event()

    @property
    def _host(self) -> str:
        return self._plan.node_address(self._node)

    async def run(self, client: Client) -> None:
        self._client = client
        self._queue = WorkQueue(base_s=0.1, cap_s=10.0)
        self._events = EventRecorder(client, "kubelet", self._node.name)
        self._pods = Informer(client, PODS, on_change=self._on_pod, fieldSelector=f"spec.nodeName={self._node.name}")
        self._services = Informer(client, SERVICES)
        self._objects = {"ConfigMap": Informer(client, CONFIGMAPS), "Secret": Informer(client, SECRETS)}
        for kind, informer in self._objects.items():
            informer.subscribe(lambda old, new, k=kind: self._on_object(k, new or old))  # type: ignore[misc]
        self._desired: dict[str, Obj] = {}
        self._posted.clear()
        registration = Registration(client, self._plan, self._node, self._url)
        await registration.register()
        for local in self._sandboxes.found():
            self.locals.setdefault(local.uid, local)
        informers = [self._pods, self._services, *self._objects.values()]
        tasks = [asyncio.ensure_future(i.run()) for i in informers]
        tasks += [asyncio.ensure_future(t) for t in (registration.run(), self._events.run())]
        try:
            for informer in informers:
                await informer.synced()
            for uid in self.locals:  # also those that the API does not know any more
                self._queue.add(uid)
                self._follow(uid)
            tasks.append(asyncio.ensure_future(work(self._queue, self._sync, WORKERS)))
            await asyncio.gather(*tasks)
        finally:
            for task in [*tasks, *self._followers.values()]:
                task.cancel()
            await asyncio.gather(*tasks, *self._followers.values(), return_exceptions=True)
            self._followers.clear()

    # What happens around us

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and (new is None or uid_of(old) != uid_of(new)):
            self._desired.pop(uid_of(old), None)
            self._queue.add(uid_of(old))
        if new is not None:
            self._desired[uid_of(new)] = new
            self._queue.add(uid_of(new))

    def _on_object(self, kind: str, obj: Obj | None) -> None:
        if obj is None:
            return
        for uid, pod in self._desired.items():
            here = pod["metadata"]["namespace"] == obj["metadata"]["namespace"]
            if here and (kind, obj["metadata"]["name"]) in needed(pod):
                self._queue.add(uid)

    async def connect(self, local: Local) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the shim of a pod."""
        return await self._sandboxes.connect(local)

    def _follow(self, uid: str) -> None:
        task = self._followers.get(uid)
        if task is None or task.done():
            self._followers[uid] = asyncio.ensure_future(self._listen(uid))

    async def _listen(self, uid: str) -> None:
        """Hear from the shim what happens in its pod, until it ends."""
        local = self.locals[uid]
        try:
            reader, writer = await self._sandboxes.connect(local)
        except OSError:
            await asyncio.sleep(0.05)  # it is just starting, or gone
        else:
            try:
                while line := await reader.readline():
                    local.facts = json.loads(line)
                    self._told(uid)
            except (OSError, ValueError):
                pass
            finally:
                writer.close()
        local.facts = local.read_facts() or local.facts
        self._told(uid)

    def _told(self, uid: str) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        self._queue.add(uid)

    # One pod

    async def _sync(self, uid: str) -> None:
        pod, local = self._desired.get(uid), self.locals.get(uid)
        if pod is None:
            if local is not None:
                await self._end(local, grace_s=0.0)
                if local.torn_down:
                    await self._forget(local)
            return
        deleted = bool(pod["metadata"].get("deletionTimestamp"))
        if local is None:
            if deleted:
                await self._delete(pod)
            elif (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                await self._start(pod)
            return
        self._tell_events(pod, local)
        if deleted and not local.torn_down:
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            await self._end(local, float(grace if grace is not None else 30))
        elif not deleted and not local.torn_down:
            if not (local.place / "recipe.json").exists():
                await self._start(pod)
                return
            await self._keep(pod, local)
        await self._post(pod, local)
        if local.torn_down and deleted:
            await self._delete(pod)
            await self._forget(local)

    async def _start(self, pod: Obj) -> None:
        uid = uid_of(pod)
        try:
            await self._begin(pod)
            self._problems.pop(uid, None)
        except recipes.CreateError as e:
            self._trouble(pod, (e.container, e.reason, e.message), "Failed", f"Error: {e.message}")
        except volumes.MountError as e:
            self._trouble(pod, ("", "ContainerCreating", ""), "FailedMount", str(e))
        except (WiringError, OSError) as e:
            self._trouble(pod, ("", "ContainerCreating", ""), "FailedCreatePodSandBox", str(e))
        except (Full, devices.NotEnough) as e:
            reason = "UnexpectedAdmissionError" if isinstance(e, devices.NotEnough) else "OutOfPods"
            status = podstatus.failed(pod, reason, str(e), {"hostIP": self._host}, time.time())
            await self._write_status(pod, status)
            self._events.record(pod, PODS, "Warning", reason, str(e))
            if uid in self.locals:
                await asyncio.to_thread(self._sandboxes.tear_down, self.locals[uid])
            return
        local = self.locals.get(uid)
        if local is not None:
            await self._post(pod, local)
        if uid in self._problems:
            self._queue.add_after(uid, RETRY_S)

    def _trouble(self, pod: Obj, problem: tuple[str, str, str], reason: str, message: str) -> None:
        self._problems[uid_of(pod)] = problem
        self._events.record(pod, PODS, "Warning", reason, message)

    async def _begin(self, pod: Obj) -> None:
        uid = uid_of(pod)
        given = self._devices.allocate(uid, pod["spec"])
        pod = await self._annotate(pod, devices.device_annotations(given))
        async with self._addressing:  # two pods that begin together do not get the same address
            local = self.locals.get(uid)
            if local is None:
                local = await asyncio.to_thread(self._sandboxes.make, pod, list(self.locals.values()))
                self.locals[uid] = local
        full = await with_token(self._client, pod) if linux.may_mount() else pod
        objects = await fetch_objects(self._client, full)
        tokens = await fetch_tokens(self._client, full)
        await asyncio.to_thread(self._launch, local, self._inputs(full, local, objects, tokens, given))
        for container in pod["spec"]["containers"]:
            self._say_image(pod, container.get("image") or "")
        self._follow(uid)

    def _launch(self, local: Local, inputs: recipes.Inputs) -> None:
        recipe, notes = recipes.build(inputs)
        group = self._sandboxes.make_group(local)
        recipe |= {
            "netns": self._sandboxes.network(local),
            "cgroup": list(group.paths),
            "cgroup_version": group.version,
        }
        if self._plan.network == "loopback":
            notes += ports_in_use(inputs.pod, local.address)
        for note in notes:
            self._events.record(inputs.pod, PODS, "Warning", "Note", note)
        self._sandboxes.launch(local, recipe)

    def _inputs(
        self,
        pod: Obj,
        local: Local,
        objects: Mapping[tuple[str, str], Obj],
        tokens: Mapping[TokenRequest, str],
        given: Mapping[str, dict[str, list[int]]],
    ) -> recipes.Inputs:
        facts = {"hostIP": self._host, "podIP": local.address}
        facts |= {f"allocatable.{name}": value for name, value in self._node.capacity.items()}
        links = pod["spec"].get("enableServiceLinks", True)
        services = environment.service_variables(pod["metadata"]["namespace"], list(self._services), links)
        if self._plan.network == "loopback":  # nobody forwards service addresses: the API is where it really is
            host, _, port = self._client.access.server.partition("//")[2].rpartition(":")
            services |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        return recipes.Inputs(
            pod=pod,
            place=local.place,
            cluster=self._sandboxes.cluster,
            network=self._plan.network,
            netns="",
            cgroup=[],
            cgroup_version=0,
            facts=facts,
            services=services,
            devices=given,
            node_devices=self._devices.capacity,
            lookup=lambda kind, name: objects.get((kind, name)),
            nfs=self._plan.nfs,
            host_paths=self._plan.host_paths,
            tokens=tokens,
            ca=self._client.access.ca_pem,
            started_at=local.started_at,
            backoff_s=self._plan.crash_backoff_s,
        )

    async def _annotate(self, pod: Obj, wanted: dict[str, str]) -> Obj:
        have = pod["metadata"].get("annotations") or {}
        if all(have.get(k) == v for k, v in wanted.items()):
            return pod
        patch = {"metadata": {"uid": uid_of(pod), "annotations": wanted}}
        return await self._client.patch(PODS, pod["metadata"]["name"], patch, pod["metadata"]["namespace"])

    def _say_image(self, pod: Obj, image: str) -> None:
        if image and image not in self._images:
            self._images.add(image)
            text = f'Image "{image}" is not pulled: the file system of this machine is the image'
            self._events.record(pod, PODS, "Normal", "ImageNotPulled", text)

    async def _keep(self, pod: Obj, local: Local) -> None:
        """It should run: its shim must be there, and its files up to date."""
        uid = local.uid
        if local.done:
            await asyncio.to_thread(self._sandboxes.tear_down, local)
            self._devices.release(uid)
            return
        if not await asyncio.to_thread(self._sandboxes.shim_alive, local):
            facts = local.read_facts()
            if facts.get("done"):
                local.facts = facts
                self._queue.add(uid)
                return
            await asyncio.to_thread(self._sandboxes.sweep, local)
            text = "the pod's supervisor was gone; it is started again"
            self._events.record(pod, PODS, "Warning", "ShimRestarted", text)
            objects = await fetch_objects(self._client, pod)
            tokens = await self._tokens(pod, local)
            setting = recipes.volume_setting(self._inputs(pod, local, objects, tokens, {}))
            try:
                await asyncio.to_thread(volumes.prepare, setting)
                await asyncio.to_thread(self._sandboxes.relaunch, local)
            except (volumes.MountError, WiringError) as e:
                self._events.record(pod, PODS, "Warning", "FailedMount", str(e))
                self._queue.add_after(uid, RETRY_S)
                return
        self._follow(uid)
        if any(kind in v for v in pod["spec"].get("volumes") or [] for kind in volumes.FILES):
            objects, tokens = await fetch_objects(self._client, pod), await self._tokens(pod, local)
            setting = recipes.volume_setting(self._inputs(pod, local, objects, tokens, {}))
            await asyncio.to_thread(volumes.refresh, setting)

    async def _tokens(self, pod: Obj, local: Local) -> Mapping[TokenRequest, str]:
        """Of the volumes that it asks for itself; renewed in time."""
        lasts_s, now = tokens_last_s(pod), time.monotonic()
        if now >= local.tokens_until:
            local.tokens |= await fetch_tokens(self._client, pod)
            local.tokens_until = now + lasts_s
        if lasts_s < float("inf"):
            self._queue.add_after(local.uid, max(0.0, local.tokens_until - now))
        return local.tokens

    async def _end(self, local: Local, grace_s: float) -> None:
        """Order the end, or see it through."""
        if local.torn_down:
            return
        begun = (local.place / "recipe.json").exists()
        if local.done or not begun or not await asyncio.to_thread(self._sandboxes.shim_alive, local):
            await self._tear_down(local)
        elif local.grace_s is None or grace_s < local.grace_s:
            local.grace_s = grace_s
            self._follow(local.uid)
            if not await self._order(local, {"op": "stop", "grace_s": grace_s}):
                await self._tear_down(local)
                return
            self._queue.add_after(local.uid, grace_s + STOP_MARGIN_S)
            local.stop_by = time.monotonic() + grace_s + STOP_MARGIN_S
        elif time.monotonic() >= local.stop_by:
            await self._tear_down(local)

    async def _order(self, local: Local, what: Obj) -> bool:
        """True when the shim has said that it stops."""
        try:
            reader, writer = await self._sandboxes.connect(local)
        except OSError:
            return False
        try:
            writer.write(json.dumps(what).encode() + b"\n")
            while line := await asyncio.wait_for(reader.readline(), ORDER_S):
                if json.loads(line).get("stopping"):
                    return True
        except (OSError, ValueError, asyncio.TimeoutError) as e:
            log.info("%s: its shim does not answer: %s", local.key, e)
        finally:
            writer.close()
        return False

    async def _tear_down(self, local: Local) -> None:
        await asyncio.to_thread(self._sandboxes.tear_down, local)
        self._devices.release(local.uid)
        if not local.done:  # ended from outside: write down what its containers came to
            local.facts = _ended(local.facts)

    async def _forget(self, local: Local) -> None:
        self.locals.pop(local.uid, None)
        self._problems.pop(local.uid, None)
        self._posted.pop(local.uid, None)
        follower = self._followers.pop(local.uid, None)
        if follower is not None:
            follower.cancel()
        await asyncio.to_thread(self._sandboxes.forget, local)

    # What the API gets to know

    def _tell_events(self, pod: Obj, local: Local) -> None:
        for event in local.facts.get("events") or []:
            if event["seq"] > local.seen:
                self._events.record(pod, PODS, event["type"], event["reason"], event["message"])
                local.seen = event["seq"]
        if local.place.exists() and not local.torn_down:
            local.save()

    async def _post(self, pod: Obj, local: Local) -> None:
        addresses = {"hostIP": self._host}
        if local.facts.get("containers") or local.host_network:
            addresses["podIP"] = local.address
        status = podstatus.status(
            pod,
            local.facts,
            now=time.time(),
            addresses=addresses,
            started_at=local.started_at,
            problem=self._problems.get(local.uid),
        )
        await self._write_status(pod, status)

    async def _write_status(self, pod: Obj, status: Obj) -> None:
        text = json.dumps(_without_times(status), sort_keys=True)
        if self._posted.get(uid_of(pod)) == text:
            return
        namespace, name = split_key(key_of(pod))
        patch = {"metadata": {"uid": uid_of(pod)}, "status": status}
        try:
            await self._client.patch(PODS, name, patch, namespace, sub="status")
        except ApiError as e:
            if e.code not in (404, 409, 422):
                raise
            log.info("status of %s: %s", key_of(pod), e)  # another pod of that name by now, or none
            return
        self._posted[uid_of(pod)] = text

    async def _delete(self, pod: Obj) -> None:
        """All is gone here: now the object may go."""
        namespace, name = split_key(key_of(pod))
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(pod)}}
        try:
            await self._client.delete(PODS, name, namespace, options)
        except ApiError as e:
            if e.code not in (404, 409):
                raise


def _without_times(status: Obj) -> Obj:
    conditions = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status.get("conditions") or []]
    return {**status, "conditions": conditions}


def _ended(facts: dict[str, object]) -> dict[str, object]:
    now = time.time()
    containers = {}
    known = facts.get("containers")
    for name, c in (known if isinstance(known, dict) else {}).items():
        if c["state"] == "running":
            c = {**c, "state": "terminated", "exitCode": 137, "reason": "Error", "finishedAt": now, "ready": False}
        containers[name] = c
    return {**facts, "containers": containers, "done": True}
