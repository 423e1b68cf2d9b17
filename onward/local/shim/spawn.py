"""Starting a process as a container: in its control group, with its volumes mounted, under its user; and starting
another one beside it (exec, probes, hooks).

The child tells through a pipe how far it came; a pipe that closes without a word means that the command runs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from typing import Any

from onward.local.shim import cgroups, linux

Spec = dict[str, Any]


class StartError(Exception):
    """The command could not be started."""


class CommandNotFound(Exception):
    """There is nothing of that name to run. Anything else that is not there is an OSError and says what."""

    def __init__(self, name: str) -> None:
        what = "no such file or directory" if "/" in name else "executable file not found in $PATH"
        super().__init__(f'exec: "{name}": {what}')


def start(spec: Spec, group: cgroups.Group, files: tuple[int, int, int]) -> int:
    """Fork and exec a container with these as its standard files. Returns its pid once the command runs."""
    return _fork(lambda: _become_container(spec, group, files))


def beside(spec: Spec, group: cgroups.Group, main: int, argv: list[str], out: int) -> int:
    """Run a command in the namespaces of a container that runs (`main` is its process)."""
    return _fork(lambda: _become_beside(spec, group, main, argv, out))


def aside(work: Any, out: int) -> int:
    """Fork to run `work()`, which writes to stdout and returns an exit code. For probes, which may block."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _child_signals()
        os.dup2(out, 1)
        os._exit(int(work()))
    finally:
        os._exit(1)


def _fork(become: Any) -> int:
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            become()
        except CommandNotFound as e:
            _tell(write, str(e))
        except OSError as e:
            _tell(write, f"{e.strerror or e}" + (f": {e.filename}" if e.filename else ""))
        except BaseException as e:  # nobody but the parent can say it
            _tell(write, repr(e))
        finally:
            os._exit(127)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read(4096)
    if said:
        os.waitpid(pid, 0)
        raise StartError(said.decode(errors="replace"))
    return pid


def _tell(pipe: int, text: str) -> None:
    os.write(pipe, text.encode()[:4096])


def _child_signals() -> None:
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _become_container(spec: Spec, group: cgroups.Group, files: tuple[int, int, int]) -> None:
    os.setsid()
    _child_signals()
    group.enter()
    if spec.get("mounts"):
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SLAVE)
        _mount_all(spec["mounts"])
    for target, source in enumerate(files):
        os.dup2(source, target)
    if spec.get("tty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    become(spec, spec["argv"])


def _become_beside(spec: Spec, group: cgroups.Group, main: int, argv: list[str], out: int) -> None:
    os.setsid()
    _child_signals()
    if spec.get("mounts"):
        linux.enter(f"/proc/{main}/ns/mnt", linux.CLONE_NEWNS)
    group.enter()
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    become(spec, argv)


def _mount_all(entries: list[Spec]) -> None:
    """Outer ones first. A volume may be mounted within another one, which need not have a place for it."""
    for number, entry in enumerate(entries):
        target = entry["target"]
        linux.mount(entry["source"], target, flags=linux.MS_BIND | linux.MS_REC)
        for inner in entries[number + 1 :]:
            if inner["target"].startswith(f"{target}/"):
                _make_place(inner)
        if entry.get("readonly"):
            linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)


def _make_place(entry: Spec) -> None:
    target = entry["target"]
    if os.path.isdir(entry["source"]):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o644))


def become(spec: Spec, argv: list[str]) -> None:
    _go_to(spec.get("cwd") or "/", spec.get("mounts") or [])
    if spec.get("gid") is not None:
        os.setgroups(spec.get("groups") or [])
        os.setgid(spec["gid"])
    if spec.get("uid") is not None:
        os.setuid(spec["uid"])
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # changing the user clears it
    exec_in_path(argv, spec["env"])


def _go_to(place: str, mounts: list[Spec]) -> None:
    """A working directory in a volume is made, as container runtimes do; elsewhere it would be one of the machine's."""
    try:
        if any(os.path.realpath(place).startswith(f"{entry['target']}/") for entry in mounts):
            os.makedirs(place, exist_ok=True)
        os.chdir(place)
    except OSError as e:
        raise OSError(e.errno, f"working directory {place}: {e.strerror}") from None


def exec_in_path(argv: list[str], env: dict[str, str]) -> None:
    """Look the command up in the container's PATH, not in ours."""
    name = argv[0]
    path = name if "/" in name else _in_path(name, env.get("PATH", "/usr/local/bin:/usr/bin:/bin"))
    try:
        os.execve(path, argv, env)
    except FileNotFoundError:  # also where a script is there, and what its first line names is not
        raise CommandNotFound(path) from None


def _in_path(name: str, places: str) -> str:
    for place in places.split(":"):
        path = f"{place or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise CommandNotFound(name)
