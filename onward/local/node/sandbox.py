"""A pod's place on this machine: directory, address, network, control group, mounts; and its shim.

Everything here can be done again after a crash in the middle, and taking down leaves nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.kube.objects import Obj, key_of
from onward.local.node import volumes
from onward.local.node.mountpoints import MountPoints
from onward.local.node.references import Tokens
from onward.local.plan import NodePlan, Plan, cluster_id
from onward.local.shim import cgroups, linux
from onward.local.shim.main import LOCK, command
from onward.local.wiring import Wiring

STARTS_S = 20.0
FLOCK = "hhqqi"  # struct flock
FIRST, LAST = 2, 254


class Full(Exception):
    """No pod address is left."""


@dataclass
class Local:
    """A pod that this node has, or had, on this machine."""

    uid: str
    key: str
    place: Path
    address: str
    started_at: float
    host_network: bool
    torn_down: bool = False  # it has ended and only its logs are left
    facts: dict[str, Any] = field(default_factory=dict)
    seen: int = 0  # the last event of the shim that was told
    grace_s: float | None = None  # what the shim was last ordered
    stop_by: float = float("inf")  # when it must have ended (monotonic)
    tokens: Tokens = field(default_factory=dict)  # of the volumes that it asks for
    tokens_until: float = 0.0  # they are asked for anew then (monotonic)

    @property
    def done(self) -> bool:
        return bool(self.facts.get("done"))

    def save(self) -> None:
        names = ("uid", "key", "address", "started_at", "host_network", "torn_down", "seen")
        new = self.place / "local.json.new"
        new.write_text(json.dumps({name: getattr(self, name) for name in names}))
        new.rename(self.place / "local.json")

    def read_facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.place / "state.json").read_text()))
        except (OSError, ValueError):
            return {}


class Sandboxes:
    """All of one node."""

    def __init__(self, state: Path, plan: Plan, node: NodePlan) -> None:
        self._state, self._plan, self._node = state, plan, node
        self.cluster = cluster_id(state)
        self._wiring = Wiring(self.cluster, plan)
        self._places = state / "nodes" / node.name / "pods"
        self._places.mkdir(parents=True, exist_ok=True)
        self._mountpoints = MountPoints(state)
        self.group = cgroups.find(f"{self.cluster}/{node.name}") if os.geteuid() == 0 else cgroups.Group()

    def found(self) -> list[Local]:
        """What a process before this one has left."""
        result = []
        for place in sorted(self._places.iterdir()):
            try:
                data = json.loads((place / "local.json").read_text())
                local = Local(place=place, **data)
            except (OSError, ValueError, TypeError):
                shutil.rmtree(place, ignore_errors=True)  # it had not begun
                continue
            local.facts = local.read_facts()
            result.append(local)
        return result

    def make(self, pod: Obj, others: list[Local]) -> Local:
        uid = pod["metadata"]["uid"]
        host_network = bool(pod["spec"].get("hostNetwork"))
        taken = {o.address for o in others if not o.torn_down}
        if host_network:
            address = self._plan.node_address(self._node)
        else:
            # Not the lowest free one: an address that was just given up would be taken for the pod that had it.
            start = max((int(o.address.rpartition(".")[2]) for o in others if not o.host_network), default=FIRST - 1)
            for n in [*range(start + 1, LAST + 1), *range(FIRST, start + 1)]:
                address = self._plan.pod_address(self._node, n)
                if address not in taken:
                    break
            else:
                raise Full(f"all {LAST - FIRST + 1} pod addresses of {self._node.name} are in use")
        place = self._places / uid
        place.mkdir(parents=True, exist_ok=True)
        local = Local(uid, key_of(pod), place, address, time.time(), host_network)
        local.save()
        return local

    def network(self, local: Local) -> str:
        """The file of its network namespace; empty where all share this machine's."""
        if self._plan.network != "pods":
            return ""
        if local.host_network:
            return self._wiring.path(self._wiring.node(self._node))
        return self._wiring.build_pod(self._node, local.uid, local.address)

    def make_group(self, local: Local) -> cgroups.Group:
        if not self.group.paths:
            return self.group
        group = self.group.child(local.uid)
        group.create()
        return group

    def launch(self, local: Local, recipe: Obj) -> None:
        """Start the shim. It outlives us: a session of its own, nothing of ours held open."""
        self._need(local, recipe)
        file = local.place / "recipe.json"
        file.touch(0o600)
        file.write_text(json.dumps(recipe))
        self.start_shim(local)

    def _need(self, local: Local, recipe: Obj) -> None:
        for container in recipe["containers"]:
            targets = {entry["target"] for entry in container["mounts"]}
            for entry in container["mounts"]:
                if targets.isdisjoint(map(str, Path(entry["target"]).parents)):  # else it is within another volume
                    self._mountpoints.need(entry["target"], not os.path.isdir(entry["source"]), local.uid)

    def relaunch(self, local: Local) -> None:
        """Its shim is gone, perhaps with the whole machine: make what a restart has taken away, and start another."""
        self.network(local)
        self.make_group(local)
        self._need(local, json.loads((local.place / "recipe.json").read_text()))
        self.start_shim(local)

    def start_shim(self, local: Local) -> None:
        with open(local.place / "shim.log", "ab") as log:
            p = subprocess.Popen(
                command(str(local.place)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.environ.get("PATH", "")},
            )
        deadline = time.monotonic() + STARTS_S
        while p.poll() is None and not self.shim_alive(local):
            if time.monotonic() > deadline:
                p.kill()
                raise OSError(f"the pod's supervisor did not start within {STARTS_S:g} s")
            time.sleep(0.005)

    async def connect(self, local: Local) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A path in a socket address is short, so the directory is named by a file descriptor."""
        fd = os.open(local.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/shim.sock", limit=1 << 24)
        finally:
            os.close(fd)

    def shim(self, local: Local) -> int:
        """The pid of its shim: who holds the lock. 0: there is none."""
        try:
            fd = os.open(local.place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return 0  # no directory, no shim
        try:
            asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked)[: struct.calcsize(FLOCK)])
        finally:
            os.close(fd)
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def shim_alive(self, local: Local) -> bool:
        return self.shim(local) != 0

    def _end_shim(self, local: Local, for_good: bool) -> None:
        """Kill the shim. For good: one that was started and has not begun yet will find nothing to do."""
        deadline = time.monotonic() + STARTS_S
        while pid := self.shim(local):
            if time.monotonic() > deadline:
                raise OSError(f"the supervisor of pod {local.key} could not be ended")
            _kill(pid)
            time.sleep(0.005)
        if for_good:
            (local.place / "recipe.json").unlink(missing_ok=True)
            late = self.shim(local)  # it read the recipe just before
            if late:
                self._end_shim(local, for_good)

    def sweep(self, local: Local, for_good: bool = False) -> None:
        """End every process of a pod whose shim does not do it, and the shim."""
        names = self._container_names(local)
        self._end_shim(local, for_good)
        group = self.group.child(local.uid) if self.group.paths else cgroups.Group()
        group.kill()
        for name in names:
            for pid in linux.holders(f"ONWARD_CONTAINER={local.uid}/{name}".encode()):
                _kill(pid)

    def _container_names(self, local: Local) -> list[str]:
        try:
            return [c["name"] for c in json.loads((local.place / "recipe.json").read_text())["containers"]]
        except (OSError, ValueError):
            return []

    def tear_down(self, local: Local) -> None:
        """All but the directory with the logs."""
        self.sweep(local, for_good=True)
        if self.group.paths:
            self.group.child(local.uid).remove()
        if self._plan.network == "pods" and not local.host_network:
            self._wiring.remove_pod(self._node, local.uid)
        self._mountpoints.release(local.uid)
        volumes.remove(local.place, self.cluster, local.uid)
        local.torn_down = True
        local.save()

    def forget(self, local: Local) -> None:
        shutil.rmtree(local.place, ignore_errors=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def ports_in_use(pod: Obj, address: str) -> list[str]:
    """Where all pods share this machine's network, two cannot listen on one port. Said before it is hard to find."""
    found = []
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            try:
                socket.create_server((address, int(port["containerPort"]))).close()
            except OSError:
                text = "is in use on this machine, and pods share its network here; another pod may have it"
                found.append(f"port {port['containerPort']} of container {container['name']} {text}")
    return found
