"""How a person's command finds a running job on this machine and talks to it.

A launcher leaves `control.json` in its private run directory and holds a lock on it for as long as it lives: the kernel
drops the lock when the launcher dies, in whichever way, so a stale one is told from a live one with no guess about
process numbers. The file names the agent's socket and holds the token, so it is for the owner's eyes only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from pathlib import Path

import msgspec

from onward.agent.processes import kill_marked
from onward.checkpoints import memory
from onward.core.intake import Notice
from onward.errors import WireError
from onward.wire.control import ControlReply, ControlRequest, to_control
from onward.wire.frames import FrameReader, decode, greet_server_blocking, pack
from onward.wire.messages import Injection, encoder

FILE = "control.json"
PREFIX = "onward-"
ANSWER_S = 10.0


class ControlFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in `control.json`."""

    pid: int
    job: str
    socket: str
    token: str  # hex
    log_dir: str
    started_at: float  # wall clock
    script: str = ""
    world_size: int = 0


def bases() -> list[Path]:
    """Where run directories are made, best first."""
    found = [Path("/dev/shm")]
    with contextlib.suppress(OSError):  # there may be no directory for temporary files at all
        found.append(Path(tempfile.gettempdir()))
    return found


def publish(run_dir: Path, entry: ControlFile) -> int:
    """Write the file for others to find. Returns a descriptor that must stay open as long as the job runs."""
    temporary = run_dir / f".{FILE}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)  # belongs to the file, so it is there when the name is
    os.write(fd, msgspec.json.encode(entry))
    os.rename(temporary, run_dir / FILE)
    return fd


def running_jobs() -> list[ControlFile]:
    """The jobs of this user on this machine, oldest first. What dead ones have left goes on the way, processes too."""
    found = []
    for base in dict.fromkeys(bases()):
        try:
            entries = list(os.scandir(base))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_ours(Path(entry.path)):
                job = _look_into(Path(entry.path))
                if job is not None:
                    found.append(job)
    return sorted(found, key=lambda job: job.started_at)


def sweep() -> None:
    """Remove what dead jobs have left. A container that is started again finds its pod's shared memory as it was."""
    running_jobs()


def _is_ours(path: Path) -> bool:
    """A real directory of this user that nobody else can write to: a token from anywhere else is not trusted."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def _look_into(run_dir: Path) -> ControlFile | None:
    try:
        fd = os.open(run_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # not a run directory, or one that is being made
    try:
        try:
            entry = msgspec.json.decode(os.read(fd, 1 << 16), type=ControlFile)
        except msgspec.MsgspecError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return entry
        kill_marked(run_dir.name)  # its guard has done so, unless that was killed in the same instant
        memory.clear(run_dir)
        return None
    finally:
        os.close(fd)


class Control:
    """An open conversation with the launcher of one job. WireError when it does not answer."""

    def __init__(self, job: ControlFile) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(ANSWER_S)
        self._reader = FrameReader()
        try:
            self._sock.connect(job.socket)
            greet_server_blocking(self._sock, bytes.fromhex(job.token))
        except (OSError, ValueError) as e:
            self._sock.close()
            raise WireError(f"the launcher of job {job.job} (pid {job.pid}) does not answer: {e}") from e

    def status(self) -> ControlReply:
        return self._ask(ControlRequest(op="status"))

    def inject(self, injections: list[Injection]) -> ControlReply:
        return self._ask(ControlRequest(op="inject", injections=injections))

    def fault(self, notice: Notice) -> ControlReply:
        return self._ask(ControlRequest(op="fault", notice=notice))

    def _ask(self, request: ControlRequest) -> ControlReply:
        try:
            self._sock.sendall(pack(encoder, request))
            frames: list[bytes] = []
            while not frames:
                data = self._sock.recv(1 << 16)
                if not data:
                    raise WireError("the launcher closed the connection")
                frames = self._reader.feed(data)
        except OSError as e:
            raise WireError(f"the launcher does not answer: {e}") from e
        reply: ControlReply = decode(to_control, frames[0])
        return reply

    def close(self) -> None:
        self._sock.close()
