"""From a fresh process to the user's script: the same few lines for a forked rank and for a cold one.

Nothing here imports torch; a forked rank already has it.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import json
import os
import pkgutil
import runpy
import signal
import sys
import time
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import msgspec

from onward.agent.processes import PR_SET_PDEATHSIG, _libc, die_with
from onward.title import entitle
from onward.wire import memory

WRITE_OUT_S = 60.0  # for files that a script has left open


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a process needs to become a rank."""

    process: int
    parent: int  # the agent that adopts it
    env: dict[str, str]
    launch: str  # script, module or program
    script: str
    args: list[str]
    cwd: str
    role: str  # what `ps` shows: rank3, or spare3
    job: str  # and of which job
    out: str  # log files
    err: str
    seed: int = 0  # of random streams that the script does not seed
    claim: str = ""  # see `claimed`

    def packed(self) -> bytes:
        """As ASCII. Not by msgspec: an environment and a path may hold any bytes, not only UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @staticmethod
    def unpacked(data: bytes | str) -> RankSpec:
        return msgspec.convert(json.loads(data), RankSpec)


def claimed(path: str, pid: int) -> int:
    """Whose it is to be a process: that of the first who asks, for good. 0: no fork may be it any more.

    A warm parent that dies may or may not have forked, and a fork may come to life late: this decides between it and
    the process that is started in its place.
    """
    try:
        os.symlink(str(pid), path)
        return pid
    except FileExistsError:
        return int(os.readlink(path))


def become(spec: RankSpec) -> None:
    """Turn this process into the rank: session, environment, streams. Returns when it may run user code."""
    os.setsid()
    entitle(spec.role, spec.job)
    if spec.role.startswith("spare"):
        memory.go_first()
    while os.getppid() != spec.parent:  # until the double fork has handed us over
        if not os.path.exists(f"/proc/{spec.parent}"):
            os._exit(70)
        time.sleep(0.0002)
    die_with(spec.parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(spec.env)
    with contextlib.suppress(OSError):  # it may be gone: then we are where the launcher was started all the same
        os.chdir(spec.cwd)
    _redirect(spec)
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _redirect(spec: RankSpec) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for path, target in ((spec.out, 1), (spec.err, 2)):
        fd = os.open(path, flags, 0o644)
        os.dup2(fd, target)
        if fd > 2:
            os.close(fd)
    if null > 2:
        os.close(null)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, closefd=False), _stream(1, "<stdout>"), _stream(2, "<stderr>")
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))  # what scripts go back to


def _stream(fd: int, name: str) -> io.TextIOWrapper:
    """As `python -u` has them, which is what torchrun starts: what was printed is there, however the process ends."""
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
    text.mode = "w"  # type: ignore[misc]  # as Python does it
    return text


_as_python_does: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
_forks_from_main = False


def _before_fork() -> None:
    global _forks_from_main
    import threading

    _forks_from_main = threading.current_thread() is threading.main_thread()


def _after_fork() -> None:
    # The signal comes when the *thread* that forked ends, so only the main thread's children may ask for it.
    if _forks_from_main:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run_script(spec: RankSpec) -> int:
    """Run the user's script as `python script args` would. Returns the exit code."""
    sys.argv = [spec.script, *spec.args]
    try:
        _run_as_main(spec)
        return 0
    except SystemExit as e:
        if e.code is None:
            return 0
        sys.last_value = e if e.code else None  # Python itself keeps it for other errors
        if isinstance(e.code, int):
            return e.code
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as e:
        sys.last_value = e
        return 130
    except BaseException:
        return _tell_error()


def _run_as_main(spec: RankSpec) -> None:
    """In a `__main__` that stays when the script has ended: threads and exit handlers may look things up there."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    path = os.path.abspath(spec.script)
    if spec.launch == "module":
        _search_first(spec.cwd)
        _as_python_does(spec.script, True)
    elif pkgutil.get_importer(path) is not None:  # a directory, or an archive
        _search_first(path)
        _as_python_does("__main__", False)
    else:
        _search_first(os.path.dirname(os.path.realpath(path)))
        vars(main)["__file__"] = path
        vars(main)["__loader__"] = SourceFileLoader("__main__", path)
        exec(_code_of(path), vars(main))


def _code_of(path: str) -> CodeType:
    with io.open_code(path) as f:
        code: CodeType | None = pkgutil.read_code(f)  # what has been compiled before
    if code is None:
        with io.open_code(path) as f:
            code = compile(f.read(), path, "exec", dont_inherit=True)
    return code


def _search_first(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def _tell_error() -> int:
    """As a user would see it without us: frames of the launcher are cut off. Returns the exit code."""
    kind, error, tb = sys.exc_info()
    assert kind is not None
    assert error is not None
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, tb
    try:
        _hook()(kind, error.with_traceback(tb), tb)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()  # of the user's hook, with that of the script
    return 1


def _hook() -> Any:
    """How errors are told: as the script wants it. torch's own way adds only the rank, which the screen does, too."""
    hook: Any = sys.excepthook
    while getattr(hook, "__name__", "") == "_distributed_excepthook":
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook", sys.__excepthook__)
    return hook


def leave(code: int) -> Any:
    """End the process the orderly way, up to where native threads could spoil it."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        code = code or 1
    writing = threading.Thread(target=_write_out, daemon=True)  # a pipe that nobody reads would hold us up for ever
    writing.start()
    writing.join(WRITE_OUT_S)
    os._exit(code & 0xFF)


def _write_out() -> None:
    """What Python writes when its end takes all objects with it: files that the script has left open."""
    import _io
    import ctypes
    import gc

    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, _io._IOBase)}
    files: list[Any] = [sys.stdout, sys.stderr, *(o for o in objects if type(o) in kinds)]
    files.sort(key=lambda file: not isinstance(file, _io._TextIOBase))  # what is in a text file goes into another one
    for file in files:
        with contextlib.suppress(Exception):
            # One that is written in Python (gzip) may have more to write at its end than what it holds.
            file.flush() if type(file).__module__ == "_io" or file in (sys.stdout, sys.stderr) else file.close()
    ctypes.CDLL(None).fflush(None)


def main() -> None:
    """A cold rank: the specification comes as an argument, without the environment, which is ours already."""
    spec = RankSpec.unpacked(sys.argv[1])
    become(msgspec.structs.replace(spec, env=dict(os.environ)))
    leave(run_script(spec))


if __name__ == "__main__":
    main()
