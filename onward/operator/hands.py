"""What the operator does: each write of a plan, in a way that it can be repeated, and that cannot hit anything else.

Names follow from the job and the place, so a second creation is refused by the server; deletions name the uid of what
they mean. The server's answers go into the caches at once: the next pass knows what this one did.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable

from onward.api import pods
from onward.api.env import TOKEN_KEY, Surroundings, door_of
from onward.api.job import Job
from onward.core.jobs import (
    DropGang,
    DropJob,
    DropPod,
    MakeGang,
    MakePod,
    MakeSecret,
    MakeService,
    Write,
)
from onward.errors import OnwardError
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.informer import Informer
from onward.kube.objects import PODGROUPS, PODS, SECRETS, SERVICES, Obj, Resource, controller_of, name_of, uid_of
from onward.operator.eyes import JOBS, Eyes, Memory, Sight

TOGETHER = 64  # writes at a time, at most; it begins with one and doubles while all goes well
PREVIOUS_NODE = "onward.dev/previous-node"
AVOID_NODES = "onward.dev/avoid-nodes"
MANAGERS_MOST = 16  # where a new pod looks for those whom it joins


class NotTheLeader(OnwardError):
    """Another copy may be at work: nothing is written."""


class WriteFailed(OnwardError):
    """Some writes of a pass did not happen. The first problem of each kind of object is told."""

    def __init__(self, problems: dict[str, str], retry_after_s: float | None) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems, self.retry_after_s = problems, retry_after_s


class Hands:
    """`leads` is asked before each write. `token_in_env`: pods cannot mount their job's Secret."""

    def __init__(self, client: Client, eyes: Eyes, leads: Callable[[], bool], token_in_env: bool = False) -> None:
        self._client, self._eyes, self._leads, self._token_in_env = client, eyes, leads, token_in_env

    async def carry_out(self, sight: Sight, writes: tuple[Write, ...]) -> None:
        """In order; what is about pods many at a time. Raises WriteFailed after having tried what can be."""
        problems: dict[str, str] = {}
        waits: list[float] = []
        batch = 1
        queue = list(writes)
        if any(isinstance(w, MakePod) for w in queue) and not any(isinstance(w, MakeSecret) for w in queue):
            queue.insert(0, MakeSecret())  # pods cannot begin without it, and somebody may have deleted it
        while queue:
            size = batch if isinstance(queue[0], (MakePod, DropPod)) else 1
            kind = type(queue[0])
            several = [w for w in queue[:size] if type(w) is kind]
            queue = queue[len(several) :]
            results = await asyncio.gather(*(self._one(sight, w) for w in several), return_exceptions=True)
            errors = [(w, e) for w, e in zip(several, results, strict=True) if isinstance(e, BaseException)]
            for write, e in errors:
                if not isinstance(e, (ApiError, Unreachable)):
                    raise e
                about = _about(write) if not isinstance(e, _NotYet) else "waiting"
                problems.setdefault(about, f"{_in_words(sight, write)}: {e}")
                if isinstance(e, ApiError) and e.retry_after_s is not None:
                    waits.append(e.retry_after_s)
            if any(_is_in_the_way(write, e) for write, e in errors):
                break
            batch = min(TOGETHER, batch * 2) if not errors else 1
        if problems:
            raise WriteFailed(problems, max(waits, default=None))

    async def _one(self, sight: Sight, write: Write) -> None:
        if not self._leads():
            raise NotTheLeader("the lease is not held any more")
        match write:
            case DropPod():
                await self._drop_pod(sight, write)
            case DropGang():
                await self._drop_gang(sight)
            case DropJob():
                await self._drop(JOBS, self._eyes.jobs, sight.obj, {"propagationPolicy": "Background"})
            case _:
                if isinstance(sight.read, Job):
                    await self._make(sight, sight.read, write)

    async def _make(self, sight: Sight, job: Job, write: Write) -> None:
        match write:
            case MakeSecret():
                await self._ensure_secret(job, self._eyes.memory(sight.obj))
            case MakeService(leads_to=index) if index:
                await self._lead(job, index)
            case MakeService():
                service = pods.service(job)
                if service is not None:
                    await self._create(SERVICES, service, self._eyes.services, job)
            case MakeGang(change=False):
                await self._make_gang(job)
            case MakeGang():
                await self._change_gang(sight, job)
            case MakePod():
                await self._make_pod(sight, job, write)

    async def _lead(self, job: Job, index: str) -> None:
        change = {"spec": {"selector": pods.index_labels(index)}}
        self._eyes.services.learn(await self._client.patch(SERVICES, pods.service_name(job), change, job.namespace))

    async def _make_gang(self, job: Job) -> None:
        try:
            await self._create(PODGROUPS, pods.pod_group(job), self._eyes.groups, job)
        except ApiError as e:
            if e.code != 404 or not await self._is_unserved(PODGROUPS):
                raise
            text = "PodGroups are not served here (any more); install Volcano, or run onward operator --gang off"
            raise ApiError(404, "NotServed", text) from e

    async def _change_gang(self, sight: Sight, job: Job) -> None:
        for group in self._eyes.groups_of(sight.obj):
            change = pods.pod_group_change(job, group)
            if name_of(group) == pods.pod_group_name(job) and change:
                self._eyes.groups.learn(await self._client.patch(PODGROUPS, name_of(group), change, job.namespace))

    async def _is_unserved(self, resource: Resource) -> bool:
        try:
            await self._client.request("GET", resource.path(), params={"limit": "1"})
        except ApiError as e:
            return e.code == 404
        return False

    async def _make_pod(self, sight: Sight, job: Job, write: MakePod) -> None:
        memory = self._eyes.memory(sight.obj)
        address = str(sight.service["spec"]["clusterIP"]) if sight.service is not None else ""
        around = Surroundings(
            leader_address="" if address == "None" else address,
            others=_managers(sight, memory, write),
            joins=write.joins,
            standby=bool(write.stand_in_for),
            token_in_env=self._token_in_env,
        )
        role, index = write.place
        old = write.stand_in_for
        pod = pods.pod(
            job,
            role,
            index,
            wave=write.wave,
            around=around,
            prefer=write.prefer,
            avoid=write.avoid,
            shun=write.shun,
            stand_in_for=old,
            name=pods.stand_in_name(job, role, index, old) if old else "",
        )
        marks = pod["metadata"]["annotations"]
        if write.prefer:
            marks[PREVIOUS_NODE] = write.prefer
        if write.avoid or write.shun:
            marks[AVOID_NODES] = ",".join(dict.fromkeys([*write.avoid, *write.shun]))
        await self._create(PODS, pod, self._eyes.pods, job)

    async def _create(self, resource: Resource, wanted: Obj, informer: Informer, job: Job) -> Obj:
        """One that is there already is taken for what it is: ours, or in the way."""
        try:
            made = await self._client.create(resource, wanted, job.namespace)
        except ApiError as e:
            if e.code != 409:
                raise
            try:
                made = await self._client.get(resource, name_of(wanted), job.namespace)
            except ApiError as gone_meanwhile:
                raise _NotYet() if gone_meanwhile.code == 404 else gone_meanwhile from e
            _check_owner(resource, made, job)
            await self.reclaim(resource, made, informer)
            return made
        informer.learn(made)
        return made

    async def reclaim(self, resource: Resource, ours: Obj, informer: Informer) -> None:
        """One that the cache does not hold, though it is there. Somebody may have taken away the label that it is
        found by: it is put back.
        """
        label = {pods.OPERATOR_NAME: pods.CONTROLLER}
        if not label.items() <= (ours["metadata"].get("labels") or {}).items():
            patch = {"metadata": {"uid": uid_of(ours), "labels": label}}
            namespace = ours["metadata"]["namespace"]
            ours = await guarded(self._leads, lambda: self._client.patch(resource, name_of(ours), patch, namespace))
        informer.learn(ours)

    async def _ensure_secret(self, job: Job, memory: Memory) -> None:
        """The token is kept here, too: whoever deletes the Secret gets the same one back."""
        token = memory.token or secrets.token_hex(32)
        try:
            await self._client.create(SECRETS, pods.secret(job, token), job.namespace)
        except ApiError as e:
            if e.code != 409:
                raise
            there = await self._client.get(SECRETS, pods.secret_name(job), job.namespace)
            _check_owner(SECRETS, there, job)
            token = base64.b64decode((there.get("data") or {}).get(TOKEN_KEY, "")).decode()
        memory.token = token

    async def _drop_pod(self, sight: Sight, write: DropPod) -> None:
        pod = sight.pods.get(write.name)
        if pod is None or uid_of(pod) != write.uid:
            return
        options: Obj = {}
        if write.grace_s is not None:
            options["gracePeriodSeconds"] = write.grace_s
        await self._drop(PODS, self._eyes.pods, pod, options)

    async def _drop_gang(self, sight: Sight) -> None:
        for group in self._eyes.groups_of(sight.obj):
            await self._drop(PODGROUPS, self._eyes.groups, group, {})

    async def _drop(self, resource: Resource, informer: Informer, obj: Obj, options: Obj) -> None:
        options = {**options, "preconditions": {"uid": uid_of(obj)}}
        try:
            left = await self._client.delete(resource, name_of(obj), obj["metadata"]["namespace"], options)
        except ApiError as e:
            if e.code == 404 or (e.code == 409 and await self._is_another(resource, obj)):
                informer.unlearn(obj)
                return
            raise
        same = left.get("kind") == resource.kind and uid_of(left) == uid_of(obj)
        if same and left["metadata"].get("deletionGracePeriodSeconds"):  # without time to end, it is gone already
            informer.learn(left)

    async def _is_another(self, resource: Resource, obj: Obj) -> bool:
        return await gone(self._client, resource, obj)


class _NotYet(ApiError):
    """What stood in the way is gone by now: the next pass makes it."""

    def __init__(self) -> None:
        super().__init__(409, "NotYet", "an earlier one had not gone yet")


def _check_owner(resource: Resource, there: Obj, job: Job) -> None:
    owner = controller_of(there)
    if owner is not None and owner.get("uid") == job.uid:
        return
    whose = f"{owner.get('kind')} {owner.get('name')}" if owner is not None else "nobody"
    if owner is not None and (owner.get("kind"), owner.get("name")) == (job.kind, job.name):
        if there["metadata"].get("deletionTimestamp"):
            raise _NotYet()
        whose = "an earlier job of this name"
    what = f"{resource.kind.lower()} {name_of(there)} exists already and belongs to {whose}"
    raise ApiError(409, "NameTaken", f"{what}; it is left alone: delete it, or give the job another name")


async def gone(client: Client, resource: Resource, obj: Obj) -> bool:
    """By the server's own word: this very object is no more."""
    try:
        there = await client.get(resource, name_of(obj), obj["metadata"]["namespace"])
    except ApiError as e:
        if e.code == 404:
            return True
        raise
    return uid_of(there) != uid_of(obj)


def _managers(sight: Sight, memory: Memory, new: MakePod) -> tuple[str, ...]:
    """Where those are whom a new pod is to join; nobody, when all are new."""
    before = [p for p in sight.seen.pods if new.floor <= p.wave and (p.wave < new.wave or new.stand_in_for)]
    going = [p for p in before if p.phase == "Running" and p.deleting is None]
    addresses = [str((sight.pods[p.name].get("status") or {}).get("podIP") or "") for p in going]
    alive = [door_of(address) for address in addresses if address]
    hosts = {each.rpartition(":")[0] for each in alive}
    first = [each for each in memory.managers if each.rpartition(":")[0] in hosts]
    return tuple(dict.fromkeys([*first, *alive]))[:MANAGERS_MOST]


async def guarded(leads: Callable[[], bool], work: Callable[[], Awaitable[Obj]]) -> Obj:
    """A write that only the leader may do."""
    if not leads():
        raise NotTheLeader("the lease is not held any more")
    return await work()


def _is_in_the_way(write: Write, e: BaseException) -> bool:
    """What comes after needs it, or would fail as well. A name that is taken keeps nobody else from his."""
    taken = isinstance(e, ApiError) and e.code in (404, 409)
    return not isinstance(write, DropPod) and not (isinstance(write, MakePod) and taken)


def _about(write: Write) -> str:
    match write:
        case MakeService():
            return "service"
        case MakeGang() | DropGang():
            return "gang"
        case MakePod() | MakeSecret():
            return "pod"
        case _:
            return "deletion"


def _in_words(sight: Sight, write: Write) -> str:
    match write:
        case MakePod():
            return f"pod of {write.place[0]} {write.place[1]}"
        case DropPod():
            return f"deleting pod {write.name}"
        case MakeService():
            return "service"
        case MakeGang() | DropGang():
            return "PodGroup"
        case MakeSecret():
            return "secret"
        case _:
            return f"deleting job {name_of(sight.obj)}"
