"""Checkpoints as files, for the agent: the lock on the directory, the writer's process, publishing."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from onward.agent import evidence
from onward.agent.saving import DropPart, PublishCheckpoint, WriteCheckpoint
from onward.checkpoints import disk, memory
from onward.core.checkpoints import SavedFile
from onward.errors import StateError

LOCK = ".lock"


class Vault:
    """One node's files. The node that holds rank 0 also holds the lock and publishes."""

    def __init__(self, memory_dir: Path, job: str, world_size: int, dump_dir: Path) -> None:
        self._memory = memory_dir
        self._job, self._run, self._world_size = job, "", world_size
        self._owner = False
        self.directory = dump_dir
        self.named = False  # by the script
        self._keep = 1 << 30
        self._locks: dict[Path, int] = {}
        self._one_at_a_time = threading.Lock()  # ranks ask all at once
        os.makedirs(memory_dir, exist_ok=True)

    # ------------------------------------------------------------------------------------------ the directory

    def settle(self, run: str, owner: bool) -> None:
        """The name of this run of the job, which all its nodes share, and whether this node publishes."""
        self._run, self._owner = run, owner

    def use(self, directory: Path, keep: int, fresh: bool) -> str:
        """Checkpoints go there from now on. Returns an objection, if there is one."""
        try:
            with self._one_at_a_time:
                os.makedirs(directory, exist_ok=True)
                objection = self._lock(directory, fresh) if self._owner else ""
        except OSError as e:
            objection = f"cannot write to {directory} ({e.strerror or e})"
        if not objection:
            self.directory, self._keep, self.named = directory, keep, True
        return objection

    def _lock(self, directory: Path, fresh: bool) -> str:
        if directory in self._locks:
            return ""
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.read(fd, 200).decode(errors="replace").strip() or "another job"
            os.close(fd)
            return f"{directory} is in use by {who}; give each job a directory of its own"
        os.ftruncate(fd, 0)
        os.write(fd, f"job {self._job} (pid {os.getpid()} on {socket.gethostname()})\n".encode())
        self._locks[directory] = fd
        for left in disk.unfinished(directory):
            shutil.rmtree(left, ignore_errors=True)
        if fresh:
            self._set_aside(directory)
        return ""

    def _set_aside(self, directory: Path) -> None:
        """A fresh start: what earlier runs left is kept, under a name from which nothing is loaded."""
        for folder in disk.folders(directory):
            aside = directory / f"earlier-{self._run}"
            aside.mkdir(exist_ok=True)
            os.rename(folder, aside / folder.name)

    def newest(self) -> int:
        """The step that a new start would find here, -1 when there is none. Read by nobody, so perhaps not valid."""
        return max((disk.step_of(folder.name) or 0 for folder in disk.folders(self.directory)), default=-1)

    def close(self) -> None:
        for fd in self._locks.values():
            os.close(fd)

    # ------------------------------------------------------------------------------------------ writing

    def steps_in_memory(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The steps that are here whole, and those of which this rank's local state is."""
        local = memory.local_steps(self._memory, rank)
        return tuple(s for s in memory.buffers(self._memory) if s in local) if local else (), local

    def holds(self, step: int) -> bool:
        """The shared state of `step` is in memory here."""
        return step in memory.buffers(self._memory)

    def keep_slots(self, effect: WriteCheckpoint, slots: Callable[[int, int], tuple[bytes, int]]) -> None:
        """Take the local state of all ranks, dead or alive: `slots(rank, step)` gives it, and the last step begun."""
        assert effect.save is not None
        for rank in effect.ranks:
            image, begun = slots(rank, effect.step)
            if len(image) < 8 or int.from_bytes(image[:8], "little", signed=True) != effect.step:
                raise StateError(f"the local state of rank {rank} is not that of step {effect.step}")
            again = effect.save.again and effect.step > 0
            memory.keep_local(self._memory, rank, effect.step, effect.step - 1 if again else begun, image)

    async def write(self, effect: WriteCheckpoint) -> tuple[tuple[SavedFile, ...], str]:
        """This node's part of a checkpoint, on disk; or why it is not there."""
        busy = self._memory / memory.BUSY
        files: list[tuple[str, str, int, int]] = []
        if effect.shared:
            held = memory.buffers(self._memory).get(effect.step)
            if held is None:
                return (), f"the copy of step {effect.step} in memory is gone"
            files.append((disk.SHARED, str(held[0]), memory.PAGE, held[1]))
        for rank in effect.ranks:
            path = memory.local_path(self._memory, rank, effect.step)
            files.append((disk.local_name(rank), str(path), 0, -1))
        if self._owner and not self.named:
            os.makedirs(self.directory, exist_ok=True)
        spec = {
            "folder": str(self._unfinished(effect.step, effect.generation)),
            "files": files,
            "verify": effect.save is not None,
            "nice": 0 if effect.save is not None else 5,
        }
        try:
            busy.touch()
            written = await _run_writer(spec)
            if effect.shared and effect.step not in memory.buffers(self._memory):
                return (), f"the copy of step {effect.step} was overwritten while it was being read"
            return written
        except OSError as e:
            return (), f"{e.strerror or e}"
        finally:
            busy.unlink(missing_ok=True)
            self.tidy(effect.step)

    def tidy(self, step: int) -> None:
        """Local state that no buffer goes with is of no use, except that of `step`, which others may complete."""
        memory.forget_locals(self._memory, {step, *memory.buffers(self._memory)})

    def publish(self, effect: PublishCheckpoint) -> str:
        """Give it its name. Returns what went wrong."""
        grant = effect.grant
        manifest = disk.Manifest(
            format=disk.FORMAT,
            job=self._job,
            run=self._run,
            step=grant.step,
            world_size=self._world_size,
            torch=effect.torch,
            reason=effect.reason,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            files=list(grant.files),
        )
        try:
            with self._one_at_a_time:
                disk.publish(self.directory, self._unfinished(grant.step, grant.generation), manifest, self._keep)
        except (OSError, StateError) as e:
            reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            how = "" if self.named else " (--dump-dir names one)"
            return f"{reason}; {self.directory} must be a directory that all nodes share{how}"
        return ""

    def drop(self, effect: DropPart) -> None:
        """One node removes it for all: never while it gets its name."""
        if self._owner:
            with self._one_at_a_time:
                shutil.rmtree(self._unfinished(effect.step, effect.generation), ignore_errors=True)

    def _unfinished(self, step: int, generation: int) -> Path:
        return self.directory / disk.unfinished_name(step, self._run, generation)


async def _run_writer(spec: dict[str, object]) -> tuple[tuple[SavedFile, ...], str]:
    command = [sys.executable, "-S", "-E", str(Path(__file__).with_name("writer.py")), json.dumps(spec)]
    p = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    evidence.helpers.add(p.pid)
    try:
        out, _ = await p.communicate()
        answer = json.loads(out)
        if "error" in answer:
            return (), str(answer["error"])
        return tuple(msgspec.convert(answer["files"], list[SavedFile])), ""
    except (ValueError, KeyError, msgspec.MsgspecError):
        return (), f"the writer ended without an answer (exit code {p.returncode})"
    finally:
        if p.returncode is None:
            p.kill()
        evidence.helpers.discard(p.pid)
