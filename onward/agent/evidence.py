"""What a suspect rank is doing, written down before it is killed: py-spy where it is installed, else /proc."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

LIMIT_S = 3.0
helpers: set[int] = set()  # pids of py-spy at work: theirs is an exit status that asyncio waits for


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


async def stacks(pid: int) -> str:
    """The stacks of all threads of `pid`, and where they come from."""
    tool = _py_spy()
    if tool is not None:
        try:
            out = await _ask(tool, "dump", "--pid", str(pid), "--nonblocking")
        except OSError:
            out = b""
        if out:
            return f"stacks of pid {pid}, by py-spy:\n{out.decode(errors='replace')}"
    return f"state of pid {pid}, by /proc (py-spy is not installed or gave no answer):\n{from_proc(pid)}"


async def _ask(*command: str) -> bytes:
    """What the command prints; nothing when it fails or takes too long."""
    p = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    helpers.add(p.pid)
    try:
        out, _ = await asyncio.wait_for(p.communicate(), LIMIT_S)
        return out if p.returncode == 0 else b""
    except asyncio.TimeoutError:
        p.kill()
        await p.wait()
        return b""
    finally:
        helpers.discard(p.pid)


def from_proc(pid: int) -> str:
    """What the kernel says about each thread: name, state, and what it waits in."""
    lines = []
    try:
        for tid in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            base = f"/proc/{pid}/task/{tid}"
            state = next((line.split(":", 1)[1].strip() for line in _read(f"{base}/status").splitlines()
                          if line.startswith("State:")), "?")
            name, wchan = _read(f"{base}/comm").strip(), _read(f"{base}/wchan").strip()
            kernel = _read(f"{base}/stack").strip().replace("\n", " < ")
            lines.append(f"  thread {tid} ({name}): {state}, waits in {wchan or '?'} {kernel}".rstrip())
    except OSError as e:
        lines.append(f"  gone: {e}")
    return "\n".join(lines)


def _read(path: str) -> str:
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""
