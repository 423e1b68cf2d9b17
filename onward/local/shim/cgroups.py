"""Control groups, version 1 or 2, for what pods need: limits on memory and cpu, who belongs to a container, and whether
the kernel killed for memory. Where there is none, or we may not use it, limits are not enforced and that is said.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

ROOT = "/sys/fs/cgroup"
CONTROLLERS = ("memory", "cpu")
KILL_S = 10.0
PERIOD_US = 100_000


@dataclass(frozen=True)
class Group:
    """One group, as directories: one in version 2, one per controller in version 1. Empty: there is none."""

    version: int = 0
    paths: tuple[str, ...] = ()

    def child(self, name: str) -> Group:
        return Group(self.version, tuple(f"{p}/{name}" for p in self.paths))

    def create(self) -> None:
        for path in self.paths:
            os.makedirs(path, exist_ok=True)
            if self.version == 2:
                self._delegate(path)

    def _delegate(self, path: str) -> None:
        """In version 2 a controller is usable below a group only if each group above passes it on, the root's first."""
        place = ROOT
        for name in os.path.relpath(path, ROOT).split("/"):
            file = f"{place}/cgroup.subtree_control"
            for controller in CONTROLLERS:
                try:
                    if controller not in _read(file).split():
                        _write(file, f"+{controller}")
                except OSError:
                    pass  # seen again when a limit cannot be set
            place = f"{place}/{name}"

    def limit(self, memory_bytes: int, cpu_millis: int, as_one: bool = True) -> str:
        """Set limits (0: none). Returns what could not be set, as a sentence, or nothing. `as_one`: out of memory, all
        of the group end, not one process of it."""
        if not self.paths:
            return "no control groups here: limits are not enforced" if memory_bytes or cpu_millis else ""
        try:
            if memory_bytes:
                self._limit_memory(memory_bytes, as_one)
            if cpu_millis:
                self._limit_cpu(cpu_millis)
        except OSError as e:
            return f"limits are not enforced: {e.strerror} ({e.filename})"
        return ""

    def _limit_memory(self, size: int, as_one: bool) -> None:
        if self.version == 2:
            _write(f"{self.paths[0]}/memory.max", str(size))
            # No swap; and who is out of memory ends as a whole, as the kubelet has it since 1.28.
            for file, text in (("memory.swap.max", "0"), ("memory.oom.group", str(int(as_one)))):
                if os.path.exists(f"{self.paths[0]}/{file}"):
                    _write(f"{self.paths[0]}/{file}", text)
            return
        path = self._of("memory")
        _write(f"{path}/memory.limit_in_bytes", str(size))
        try:
            _write(f"{path}/memory.memsw.limit_in_bytes", str(size))
        except OSError:
            pass  # no swap accounting

    def _limit_cpu(self, millis: int) -> None:
        quota = max(1000, millis * PERIOD_US // 1000)
        if self.version == 2:
            _write(f"{self.paths[0]}/cpu.max", f"{quota} {PERIOD_US}")
            return
        path = self._of("cpu")
        if os.path.exists(f"{path}/cpu.cfs_quota_us"):
            _write(f"{path}/cpu.cfs_period_us", str(PERIOD_US))
            _write(f"{path}/cpu.cfs_quota_us", str(quota))

    def _of(self, controller: str) -> str:
        for path in self.paths:
            if path.startswith(f"{ROOT}/{controller}/"):
                return path
        return ""

    def enter(self, pid: int = 0) -> None:
        for path in self.paths:
            _write(f"{path}/cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        found: set[int] = set()
        for path in self.paths:
            for place, _, files in os.walk(path):
                if "cgroup.procs" in files:
                    try:
                        with open(f"{place}/cgroup.procs") as f:
                            found.update(int(line) for line in f)
                    except OSError:
                        continue
        return sorted(found)

    def oom_kills(self) -> int:
        """How often the kernel killed somebody of this group for memory."""
        file = f"{self.paths[0]}/memory.events" if self.version == 2 else f"{self._of('memory')}/memory.oom_control"
        try:
            with open(file) as f:
                fields = dict(line.split() for line in f)
            return int(fields.get("oom_kill", 0))
        except (OSError, ValueError, IndexError):
            return 0

    def kill(self, spare: int = 0) -> None:
        """SIGKILL to all of them, until nobody is left. `spare`: one who is not killed."""
        if self.version == 2 and self.paths and not spare:
            try:
                _write(f"{self.paths[0]}/cgroup.kill", "1")  # all at once: nobody forks faster (Linux 5.14)
            except OSError:
                pass
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline:
            pids = [pid for pid in self.pids() if pid != spare]
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.002)

    def remove(self) -> None:
        """Take the directories away, deepest first. A dying process can hold one for a moment."""
        for path in self.paths:
            for place, _, _ in os.walk(path, topdown=False):
                for _ in range(100):
                    try:
                        os.rmdir(place)
                        break
                    except FileNotFoundError:
                        break
                    except OSError:
                        time.sleep(0.01)


def _write(path: str, text: str) -> None:
    with open(path, "w") as f:
        f.write(text)


def _read(path: str) -> str:
    with open(path) as f:
        return f.read()


def find(name: str) -> Group:
    """The group called `name`, ready to hold others; an empty one where that cannot be."""
    try:
        if os.path.exists(f"{ROOT}/cgroup.controllers"):
            group = Group(2, (f"{ROOT}/{name}",))
        else:
            there = [c for c in CONTROLLERS if os.path.isdir(f"{ROOT}/{c}")]
            group = Group(1, tuple(f"{ROOT}/{c}/{name}" for c in there))
        group.create()
        return group
    except OSError:
        return Group()


def from_words(words: list[str] | None, version: int) -> Group:
    return Group(version, tuple(words or ())) if words else Group()
