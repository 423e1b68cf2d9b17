"""`run.checkpoint(...)` inside a rank: copy the state to the node's memory, and load it again.

Training waits for the copy only. Writing to disk is the agent's work, in a process of its own, from the copy; the copy
stays, so that a restart on the same node need not read the disk. Every rank keeps its local state; one rank of each
node keeps the shared state, which its neighbours hold alike.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

from onward.checkpoints import disk, memory
from onward.errors import StateError, UsageError
from onward.log import get_logger
from onward.train.link import Interrupted, Link
from onward.train.local import LocalState
from onward.train.manifest import Manifest
from onward.train.protected import Protected
from onward.train.tensorfile import Layout, fill, open_file
from onward.wire.messages import Copied

log = get_logger("onward.train")
ANSWER_S = 60.0


class Checkpoints:
    """This rank's share in saving and loading."""

    def __init__(self, link: Link, protected: Protected, local: LocalState) -> None:
        me = link.welcome
        self._link = link
        self._me = me
        self._protected = protected
        self._local = local
        self._memory = Path(me.memory_dir)
        self._buffers = Buffers(self._memory)
        self._every = 0
        self._fresh = False
        self._directory = Path(me.dump_dir) if me.dump_dir else None
        self._last = -1  # step that was saved, or begun from
        self._skipping = False
        self._failed = ""
        self._images: dict[int, tuple[int, bytes]] = {}

    @property
    def leads(self) -> bool:
        return self._me.local_rank == 0

    # ------------------------------------------------------------------------------------- the plan

    def plan(self, every: int, directory: Any, keep: int, resume: bool) -> None:
        problems = []
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            problems.append(f"checkpoint: every={every!r} must be a number of steps, 1 or more")
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            problems.append(f"checkpoint: keep={keep!r} must be a number of checkpoints, 1 or more")
        try:
            path = Path(os.path.abspath(os.fspath(directory)))
        except TypeError:
            problems.append(f"checkpoint: dir={directory!r} must be the path of a directory")
        if not problems and self.leads:
            problems += _writable(path)
        if problems:
            raise UsageError(problems)
        try:
            objection = self._link.propose(str(path), every, keep, not resume, ANSWER_S)
        except (Interrupted, TimeoutError) as e:
            log.warning("rank %d: checkpoint: %s", self._me.rank, e)
            objection = ""
        if objection:
            raise UsageError(f"checkpoint: {objection}")
        self._every, self._directory, self._fresh = every, path, not resume

    # ------------------------------------------------------------------------------------- saving

    def due(self, step: int) -> bool:
        return self._every > 0 and step > 0 and step % self._every == 0 and step != self._last

    def prepare(self) -> None:
        """The first update is done, so the size of the state is known: have the memory for copies at hand."""
        if self._every and self.leads:
            manifest, _ = self._protected.describe(0, 0)
            size = Layout(manifest).size
            threading.Thread(target=self._buffers.touch, args=(size,), name="onward-touch", daemon=True).start()

    def save(self, step: int, generation: int, last_sync: int) -> None:
        """Copy what this rank keeps of `step` and tell the agent. Never raises: training matters more."""
        self._last = step
        if (self._memory / memory.BUSY).exists():
            if self.leads and not self._skipping:
                self._skipping = True
                log.warning("the checkpoint of step %d is skipped: the one before it is still being written", step)
            return
        self._skipping = False
        error = self.copy(step, step, last_sync, shared=self.leads)
        if error and error != self._failed:
            log.warning("rank %d: no checkpoint of step %d: %s", self._me.rank, step, error)
        self._failed = error
        if not error:
            self._link.send(self.copied(step, generation, self.leads))

    def copied(self, step: int, generation: int, shared: bool, error: str = "") -> Copied:
        return Copied(step=step, generation=generation, shared=shared, torch=str(torch.__version__), error=error)

    def copy(self, step: int, begun: int, last_sync: int, shared: bool) -> str:
        """Why it could not be done; empty when it was."""
        try:
            if self._local.slot(step).step == step:
                memory.keep_local(self._memory, self._me.rank, step, begun, self._local.slot(step).image())
            if shared:
                manifest, tensors = self._protected.describe(step, last_sync, behind=begun < step)
                self._buffers.keep(step, manifest, tensors)
        except (OSError, StateError) as e:
            where = f"{self._memory} or the directory for temporary files (TMPDIR)"
            return f"{e}; the copy in memory needs room in {where}" if isinstance(e, OSError) else str(e)
        return ""

    # ------------------------------------------------------------------------------------- loading

    def loadable(self) -> tuple[int, ...]:
        """The steps this rank could begin from. One rank of each node reads the newest checkpoint to be sure of it."""
        steps = set(memory.steps_of(self._memory, self._me.rank))
        newest = max(steps, default=-1)
        sure = not self.leads
        for folder in disk.folders(self._directory) if self._directory is not None else []:
            try:
                manifest = disk.read_manifest(folder)
                if self._fresh and manifest.run != self._me.run:
                    continue
                if not sure and manifest.step > newest:
                    disk.verify(folder, manifest)
                    sure = True
                elif manifest.step > newest:
                    disk.verify(folder, manifest, [disk.local_name(self._me.rank)])
            except disk.Invalid as e:
                if self.leads:
                    log.warning("checkpoint %s is left out: %s", folder.name, e)
                continue
            steps.add(manifest.step)
        return tuple(sorted(steps))

    def partly(self) -> tuple[int, ...]:
        """Steps of which only this rank's local state is here: the node it was on may have lost its copy."""
        return memory.local_steps(self._memory, self._me.rank)

    def begun(self, step: int) -> int:
        """The last step that this rank had begun when `step` was saved."""
        if step not in self._images:
            self._images = {step: self._local_of(step)}
        return self._images[step][0]

    def _local_of(self, step: int) -> tuple[int, bytes]:
        path: Path | None = memory.local_path(self._memory, self._me.rank, step)
        if path is None or not path.exists():
            path = self._source(step)[1]
        if path is None:
            return self._begun_by_others(step), b""
        return _read_local(path, step)

    def _begun_by_others(self, step: int) -> int:
        """A rank that was not there when it was saved does as those do who were: what they still have to run after
        that step holds collectives."""
        assert self._directory is not None
        folder = self._directory / disk.folder_name(step)
        others = sorted(disk.read_manifest(folder).names() - {disk.SHARED})
        return _read_local(folder / others[0], step)[0] if others else step

    def _source(self, step: int) -> tuple[tuple[Path, int], Path | None]:
        """Where the shared state of `step` is (and from which byte on), and this rank's local state, if any."""
        if step in memory.steps_of(self._memory, self._me.rank):
            path, _ = memory.buffers(self._memory)[step]
            return (path, memory.PAGE), memory.local_path(self._memory, self._me.rank, step)
        assert self._directory is not None
        folder = self._directory / disk.folder_name(step)
        manifest = disk.read_manifest(folder)
        if manifest.world_size != self._me.world_size and self._me.rank == 0 and step != self._last:
            log.warning(
                "the checkpoint of step %d was saved by %d ranks and is loaded by %d: what follows is not bit for bit "
                "what it would have been", step, manifest.world_size, self._me.world_size,
            )  # fmt: skip
            self._last = step
        name = disk.local_name(self._me.rank)
        return (folder / disk.SHARED, 0), folder / name if name in manifest.names() else None

    def load(self, step: int) -> Manifest:
        """Take over the shared state of `step`, and this rank's local state."""
        (path, at), _ = self._source(step)
        with open(path, "rb") as f:
            manifest = self._take(path, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY), at, self.begun(step) < step)
        if manifest.step != step:
            raise StateError(f"{path} holds step {manifest.step}, not {step}")
        self.load_local(step)
        return manifest

    def load_local(self, step: int) -> None:
        """Put this rank's local state of `step` where a redo looks for it."""
        begun = self.begun(step)
        image = self._images.pop(step)[1]
        if image:
            self._local.slot(step).put_image(image)
        else:
            self._local.adopt(0, step)  # a rank that was not there when it was saved begins with what its set-up made
        self._local.begun = begun
        self._last = step

    def _take(self, path: Path, m: mmap.mmap, at: int, behind: bool) -> Manifest:
        manifest, tensors = open_file(m, at)
        targets = self._protected.targets(manifest)
        with torch.no_grad():
            for target, t in zip(targets, tensors, strict=True):
                target.detach().copy_(t)
        try:
            self._protected.accept(manifest, targets, behind)
        except (StateError, KeyError, ValueError) as e:
            raise StateError(f"{path} does not fit what the script protects: {e}") from e
        return manifest


class Buffers:
    """The two buffers of a node's memory, as the rank that fills them sees them. Made once, then used again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: list[mmap.mmap | None] = [None] * memory.BUFFERS
        self._lock = threading.Lock()

    def touch(self, size: int) -> None:
        """Have pages behind both buffers before they are needed."""
        try:
            with self._lock:
                for i in range(memory.BUFFERS):
                    m = self._map(i, size)
                    held = memory.HEADER.unpack_from(m)[0]
                    if held < 0:
                        view = (ctypes.c_char * len(m)).from_buffer(m)
                        ctypes.memset(ctypes.addressof(view) + memory.PAGE, 0, len(m) - memory.PAGE)
                        del view
        except OSError:
            return  # it will be said when a copy cannot be made

    def keep(self, step: int, manifest: Manifest, tensors: list[torch.Tensor]) -> None:
        layout = Layout(manifest)
        with self._lock:
            m = self._map(self._oldest(), layout.size)
            words = memoryview(m).cast("q")  # whole words, in this order: see `Slot.write`
            words[0] = -1
            fill(m, memory.PAGE, layout, tensors)
            words[1] = layout.size
            words[0] = step

    def _oldest(self) -> int:
        held = {path: step for step, (path, _) in memory.buffers(self._directory).items()}
        return min(range(memory.BUFFERS), key=lambda i: held.get(memory.buffer_path(self._directory, i), -1))

    def _map(self, i: int, size: int) -> mmap.mmap:
        m = self._maps[i]
        if m is not None and len(m) >= size + memory.PAGE:
            return m
        path = memory.buffer_path(self._directory, i)
        if not path.exists() or path.stat().st_size < size + memory.PAGE:
            memory.reserve(path, (size + size // 16) // memory.PAGE * memory.PAGE + 2 * memory.PAGE)
        with open(path, "r+b") as f:
            m = self._maps[i] = mmap.mmap(f.fileno(), 0)
        return m


def _writable(path: Path) -> list[str]:
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return []
    except OSError as e:
        return [f"checkpoint: cannot write to {path} ({e.strerror or e}); give dir= a directory that can be written"]


def _read_local(path: Path, step: int) -> tuple[int, bytes]:
    """(last step begun, image) of a rank."""
    try:
        found, begun, image = memory.split_local(path.read_bytes())
    except (OSError, ValueError) as e:
        raise StateError(f"{path} cannot be read: {e}") from e
    if found != step:
        raise StateError(f"{path} holds step {found}, not {step}")
    return begun, image
