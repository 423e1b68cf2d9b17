"""Where a run keeps its things: a private directory in shared memory, and a directory for its logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from onward.agent import control
from onward.agent.facts import Process
from onward.agent.logs import user_directory
from onward.checkpoints import memory
from onward.errors import OnwardError

LONGEST_BASE = 80  # the path of a unix socket must fit into 108 bytes
ROOM_BYTES = 16 << 20


class Places:
    """The directories of one run, made new for it, and the names of the files in them."""

    def __init__(self, log_base: Path | None, job_name: str) -> None:
        self.log_dir = _log_directory(log_base, job_name)
        control.sweep()
        self.run_dir = _private_directory()
        self.memory_dir = self.run_dir / "memory"
        self.memory_dir.mkdir()
        self._lead_elsewhere()

    @property
    def socket(self) -> str:
        return str(self.run_dir / "agent.sock")

    def of(self, p: Process) -> tuple[str, str]:
        """A process's status page, and the directory of its rank's local state."""
        return str(self.run_dir / f"process{p.number}.page"), str(self.run_dir / f"rank{p.rank}.{p.attempt}")

    def _lead_elsewhere(self) -> None:
        """Copies of the state may be larger than shared memory is."""
        with contextlib.suppress(OSError):
            base = tempfile.gettempdir()
            if os.stat(base).st_dev != self.run_dir.stat().st_dev:
                target = tempfile.mkdtemp(prefix=f"{self.run_dir.name}-", dir=base)
                memory.lead_elsewhere(self.run_dir, Path(target))

    def slot(self, p: Process, step: int) -> Path:
        """Where the local state of `step` of a process's rank is."""
        return Path(self.of(p)[1]) / f"slot{step % 2}"

    def begun(self, p: Process) -> int:
        """The last step whose block a process's rank had begun."""
        with contextlib.suppress(OSError, struct.error), open(f"{self.of(p)[1]}/position", "rb") as f:
            (step,) = struct.unpack("<q", f.read(8))
            return int(step)
        return -1

    def logs(self, p: Process) -> tuple[Path, Path]:
        out, err = (self.log_dir / f"rank{p.rank}.{p.number:03d}.{n}.log" for n in ("stdout", "stderr"))
        return out, err

    def error_file(self, p: Process) -> Path:
        return self.log_dir / f"rank{p.rank}.{p.number:03d}.error.json"

    def claim(self, p: Process) -> str:
        """Made by whoever is to be this process."""
        return str(self.run_dir / f"process{p.number}.claim")

    def seed(self, p: Process) -> int:
        """Of the random streams that a rank's script does not seed: new in each run, the same in a replacement."""
        return zlib.crc32(f"{self.run_dir.name} {p.attempt} {p.rank}".encode())

    def mark(self, number: int) -> str:
        """Stands in the environment of everything that process `number` starts."""
        return f"{self.run_dir.name}.{number}"

    def local_steps(self, p: Process) -> tuple[int, ...]:
        """Which steps the local state of a process's rank is kept of."""
        return tuple(sorted(step for step, _ in self._slots(p)))

    def early_steps(self, p: Process) -> tuple[int, ...]:
        """Those of which it was written before the step before had ended."""
        return tuple(sorted(step for step, early in self._slots(p) if early))

    def _slots(self, p: Process) -> Iterator[tuple[int, bool]]:
        for i in range(2):
            with contextlib.suppress(OSError, struct.error), open(f"{self.of(p)[1]}/slot{i}", "rb") as f:
                step, *_, early = struct.unpack("<5q", f.read(40))
                if step >= 0:
                    yield step, bool(early)

    def put_local(self, p: Process, slots: dict[int, bytes]) -> None:
        """Local state of a rank that had lived on another node."""
        directory = Path(self.of(p)[1])
        directory.mkdir(exist_ok=True)
        for i, data in slots.items():
            new = directory / f".slot{i}"
            memory.remove(new)
            memory.reserve(new, len(data))
            with new.open("r+b") as f:
                f.write(data)
            # A process that has the old one open finds the new one by its name.
            memory.replace(new, directory / f"slot{i}")

    def remove(self) -> None:
        """The logs stay."""
        memory.clear(self.run_dir)


def _private_directory() -> Path:
    """A directory that only we can read, in shared memory where there is some."""
    for base in control.bases():
        try:
            if shutil.disk_usage(base).free >= ROOM_BYTES and len(str(base)) <= LONGEST_BASE:
                return Path(tempfile.mkdtemp(prefix=control.PREFIX, dir=base))
        except OSError:
            continue
    tried = " nor ".join(str(base) for base in control.bases())
    raise OnwardError(
        f"neither {tried} can be used for the sockets and status pages of the ranks: it must be writable, have 16 MB"
        f" free, and its name at most {LONGEST_BASE} letters; make room there, or set TMPDIR to another directory"
    )


def _log_directory(base: Path | None, job_name: str) -> Path:
    """A new directory for every run, as with torchrun: an earlier run's logs and journal are not this one's."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        return Path(tempfile.mkdtemp(prefix=f"{job_name}-{stamp}-", dir=base if base is not None else user_directory()))
    except OSError as e:
        raise OnwardError(f"no place for the logs ({e}); give a directory with --log-dir") from e
