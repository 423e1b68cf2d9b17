"""The warm parent: a process that has imported torch and forks ranks from it, in milliseconds.

It has one thread, no CUDA context, no store and no group: nothing that a fork could break. Ranks are forked twice, so
that they become the agent's children; killing this process hurts none of them. It reads `RankSpec`s from the control
socket, one frame each, and answers with (process, pid).
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import socket
import sys

import msgspec

from onward.agent.processes import die_with
from onward.agent.rank import RankSpec, become, claimed, leave, run_script
from onward.title import entitle
from onward.wire.frames import FrameReader


class Forked(msgspec.Struct, frozen=True):
    """The answer to a RankSpec; pid 0 means that the fork failed, and `error` says why."""

    process: int
    pid: int
    error: str = ""


class Ready(msgspec.Struct, frozen=True):
    """Said once, when everything is imported."""

    threads: int
    problems: list[str]


def _import(preload: list[str]) -> list[str]:
    problems = []
    for name in ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "onward.train.run", *preload):
        try:
            importlib.import_module(name)
        except Exception as e:
            problems.append(f"could not preload {name} ({type(e).__name__}: {e}); ranks import it by themselves")
    return problems


def _send(control: socket.socket, message: object) -> None:
    body = msgspec.json.encode(message)
    control.sendall(len(body).to_bytes(4, "big") + body)


def _fork(spec: RankSpec, control: socket.socket) -> Forked | None:
    """None in the rank itself."""
    read, write = os.pipe()
    try:
        middle = os.fork()
    except OSError as e:
        os.close(read)
        os.close(write)
        return Forked(spec.process, 0, f"cannot fork: {e}")
    if middle == 0:
        os.close(read)
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        os.close(write)
        return None
    os.close(write)
    answer = b""
    while chunk := os.read(read, 64):
        answer += chunk
    os.close(read)
    os.waitpid(middle, 0)
    return Forked(spec.process, int(answer) if answer else 0, "" if answer else "cannot fork")


def main() -> None:
    parent, preload = int(sys.argv[1]), [m for m in sys.argv[2].split(",") if m]
    die_with(parent)
    control = socket.socket(fileno=int(sys.argv[3]))
    control.set_inheritable(False)
    entitle("warm", sys.argv[4])
    problems = _import(preload)
    gc.collect()
    gc.freeze()
    _send(control, Ready(len(os.listdir("/proc/self/task")), problems))
    reader = FrameReader()
    while data := control.recv(1 << 20):
        for body in reader.feed(data):
            spec = RankSpec.unpacked(body)
            answer = _fork(spec, control)
            if answer is None:
                control.close()
                become(spec)
                if claimed(spec.claim, os.getpid()) != os.getpid():
                    os._exit(70)
                _be_ones_own(spec.seed)
                leave(run_script(spec))
                return
            _send(control, answer)


def _be_ones_own(seed: int) -> None:
    """What was settled in the warm parent is as it would be in a process of one's own."""
    # Streams that no script seeds are seeded by an import, so all ranks would draw the same. A replacement draws in its
    # set-up what the process before it drew.
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)
    if "torch.random" in sys.modules:
        sys.modules["torch.random"].default_generator.manual_seed(seed)
    wanted = os.environ.get("OMP_NUM_THREADS", "")  # it was 1 for the fork
    threads = int(wanted) if wanted.isdigit() else 1 if wanted else _cores()
    if threads > 1 and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _cores() -> int:
    """What torch would begin with by itself: MKL leaves the second thread of a core alone."""
    mkl = sys.modules.get("torch.backends.mkl")
    if mkl is None:
        return 1
    cpus = os.sched_getaffinity(0)
    if not mkl.is_available():
        return len(cpus)
    siblings = set()
    for cpu in cpus:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as f:
                siblings.add(f.read())
        except OSError:
            return len(cpus)
    return len(siblings)


if __name__ == "__main__":
    main()
