"""A leader lease: of several copies of a controller, one works.

Time on the machines is not compared: a lease counts as abandoned when *we* have seen it unchanged for its whole length.
Whoever holds it and could not renew it in time stops before others may begin.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable

from onward.kube.client import ApiError, Client, Unreachable, backoff_s
from onward.kube.objects import LEASES, Obj, micro_stamp, version_of
from onward.log import get_logger

log = get_logger("kube.lease")


def identity_of(pid: int | str) -> str:
    """How a process of this machine is called where it holds a lease."""
    return f"{socket.gethostname()}-{pid}"


async def serve_by_turns(lease: LeaderLease, lead: Callable[[], Awaitable[None]], name: str) -> None:
    """What a controller's process does: lead whenever the lease is ours, until SIGTERM or SIGINT.

    A lease can be lost without anybody's fault: an API server that starts again answers nothing, then 403 for a moment.
    Whoever has led before tries again; one that cannot even begin ends with the reason.
    """
    task = asyncio.ensure_future(_lead_again_and_again(lease, lead, name))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        await lease.release()


async def _lead_again_and_again(lease: LeaderLease, lead: Callable[[], Awaitable[None]], name: str) -> None:
    await lease.run(lead)
    failures = 0
    while True:
        print(f"{name}: the lease is lost; it waits for its turn", flush=True)
        try:
            await lease.run(lead)
            failures = 0
        except (ApiError, Unreachable) as e:
            log.warning("%s: %s", name, e)
            failures += 1
            await asyncio.sleep(backoff_s(failures))


class LeaderLease:
    """Holds, or waits for, one Lease object."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str = "",
        *,
        length_s: float = 15.0,
        renew_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
        is_dead: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        """`is_dead`: whoever knows for certain that a holder works no more need not wait for its time to run out."""
        self._client, self._namespace, self._name = client, namespace, name
        self._identity = identity or identity_of(os.getpid())
        self._length_s, self._renew_s, self._clock, self._is_dead = length_s, renew_s, clock, is_dead
        self._seen: tuple[str, float] = ("", 0.0)  # version, when first seen
        self._renewed = float("-inf")

    @property
    def held(self) -> bool:
        """True only while no one else can have taken it: two thirds of its length after the last renewal."""
        return self._clock() < self._renewed + self._length_s * 2 / 3

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then run `lead` while it is held. Returns when `lead` does, or when the lease is lost."""
        while not await self._try():
            await asyncio.sleep(self._renew_s)
        log.info("%s leads %s/%s", self._identity, self._namespace, self._name)
        work = asyncio.ensure_future(lead())
        try:
            while self.held:
                done, _ = await asyncio.wait({work}, timeout=self._renew_s)
                if done:
                    await self.release()
                    return await work
                await self._try()
            log.warning("%s lost the lease %s/%s", self._identity, self._namespace, self._name)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def release(self) -> None:
        """Let the next one in at once."""
        self._renewed = float("-inf")
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._client.update(LEASES, lease, self._namespace)
        except (ApiError, Unreachable) as e:
            log.info("lease %s: not released: %s", self._name, e)

    async def _try(self) -> bool:
        at = self._clock()
        try:
            try:
                lease = await self._client.get(LEASES, self._name, self._namespace)
            except ApiError as e:
                if e.code != 404:
                    raise
                await self._client.create(LEASES, self._fresh(), self._namespace)
            else:
                if not self._may_take(lease, at):
                    return False
                await self._client.update(LEASES, self._taken(lease), self._namespace)
        except (ApiError, Unreachable) as e:  # 409: another was faster
            log.info("lease %s: %s", self._name, e)
            return False
        self._renewed = at  # counted from before the request: a slow reply does not lengthen it
        return True

    def _may_take(self, lease: Obj, at: float) -> bool:
        holder = lease.get("spec", {}).get("holderIdentity")
        if not holder or holder == self._identity or self._is_dead(str(holder)):
            return True
        if self._seen[0] != version_of(lease):
            self._seen = (version_of(lease), at)
        length_s = float(lease["spec"].get("leaseDurationSeconds") or self._length_s)
        return at >= self._seen[1] + length_s

    def _fresh(self) -> Obj:
        now = micro_stamp(time.time())
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._length_s)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}

    def _taken(self, lease: Obj) -> Obj:
        spec, now = lease.setdefault("spec", {}), micro_stamp(time.time())
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self._identity, "renewTime": now}
        spec["leaseDurationSeconds"] = max(1, round(self._length_s))
        return lease
