"""Real launchers with real children: start them, look at them as the kernel does, and leave none behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel import alive
from waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
ONWARD = str(Path(sys.executable).with_name("onward"))
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def title(pid: int) -> str:
    """What `ps` calls it."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def stdout(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass
class Launched:
    """One `onward run`, from outside."""

    process: subprocess.Popen[bytes]
    tmp: Path
    logs: Path
    seen: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return (self.tmp / "out").read_text()

    @property
    def err(self) -> str:
        return (self.tmp / "err").read_text()

    def child(self, word: str) -> int:
        """The pid of the launcher's own child with `word` on its command line; 0 when there is none."""
        return next((p for p in children(self.pid) if word in command(p) and alive(p)), 0)

    @property
    def manager(self) -> int:
        return self.child("onward.manager")

    @property
    def guard(self) -> int:
        return self.child("guard.py")

    @property
    def warm(self) -> int:
        """The warm parent; ranks that it has forked have its command line too, but write to their own logs."""
        named = [p for p in children(self.pid) if "onward.agent.warm" in command(p) and alive(p)]
        return next((p for p in named if not stdout(p).endswith(".log")), 0)

    def said(self, name: str, count: int = 1) -> list[str]:
        """What the ranks wrote to `name`, a file per line of `tell`, when there are `count` of them."""
        until(
            lambda: len(self._told(name)) >= count or self.over,
            lambda: f"{count} x {name!r} told by the ranks\n{self.err}",
        )
        found = self._told(name)
        assert len(found) >= count, f"{name}: {found}\n{self.out}\n{self.err}"
        return found

    def _told(self, name: str) -> list[str]:
        path = self.tmp / f"told.{name}"
        text = path.read_text() if path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def pids(self, name: str, count: int = 1) -> list[int]:
        found = [int(p) for p in self.said(name, count)]
        self.seen.update(found)
        return found

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code."""
        until(lambda: self.over, lambda: f"the launcher ended\n{self.err}", limit_s)
        code = self.process.returncode
        assert code is not None
        return code

    @property
    def outcome(self) -> dict[str, Any]:
        """The JSON object that it printed at its end."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def run_dirs(self) -> list[Path]:
        """Private directories of this launcher that are still there."""
        found = []
        for base in (Path("/dev/shm"), Path("/tmp")):
            for path in base.glob("onward-*/control.json"):
                try:
                    if json.loads(path.read_text())["pid"] == self.pid:
                        found.append(path.parent)
                except (OSError, ValueError):
                    continue
        return found

    @property
    def control(self) -> dict[str, Any]:
        """What it published for `onward status`: socket and token."""
        directory = until(lambda: self.run_dirs, "the launcher published itself")[0]
        found: dict[str, Any] = json.loads((directory / "control.json").read_text())
        return found

    def log_files(self, pattern: str = "rank*") -> list[str]:
        return sorted(p.name for p in self.logs.glob(f"*/{pattern}"))

    def log(self, name: str) -> str:
        (path,) = self.logs.glob(f"*/{name}")
        return path.read_text()

    def gather(self) -> set[int]:
        """Every process below the launcher, now and at earlier looks."""
        todo = [self.pid]
        while todo:
            for p in children(todo.pop()):
                if p not in self.seen:
                    todo.append(p)
                self.seen.add(p)
        return self.seen

    def nothing_left(self) -> None:
        until(lambda: not [p for p in self.seen if alive(p)], "every process of the job is gone", 60.0)


class Onward:
    """Starts launchers on scripts written for the occasion."""

    TELL = """
        import os
        def tell(name, text):
            fd = os.open(os.path.join({tmp!r}, "told." + name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, (str(text) + "\\n").encode())
            os.close(fd)
        RANK = int(os.environ.get("RANK", "-1"))
        COUNT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "-1"))
        def meet(name, count):  # until so many have told, or the test ends us
            import time
            while len(open(os.path.join({tmp!r}, "told." + name)).readlines()) < count:
                time.sleep(0.001)
        def wait_for(name):  # until the test makes a file of that name, or ends us
            import time
            while not os.path.exists(os.path.join({tmp!r}, name)):
                time.sleep(0.02)
    """

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.started: list[Launched] = []

    def script(self, body: str, name: str = "job.py") -> str:
        """A script with `tell`, `meet`, `wait_for`, RANK and COUNT at hand."""
        path = self.tmp / name
        path.write_text(textwrap.dedent(self.TELL.format(tmp=str(self.tmp))) + textwrap.dedent(body))
        return str(path)

    def start(
        self,
        *args: str,
        nproc: int = 2,
        warm: bool = False,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        prefix: list[str] | None = None,
        name: str = "",
    ) -> Launched:
        """`onward run` in the background. Cold unless `warm`: importing torch takes seconds."""
        tmp = self.tmp / name
        tmp.mkdir(exist_ok=True)
        logs = tmp / "logs"
        line = [*(prefix or []), ONWARD, "run", "--nproc-per-node", str(nproc), "--log-dir", str(logs)]
        line += [] if warm else ["--no-warm"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ONWARD", "PET_", "TORCHELASTIC", "OMP_"))}
        with open(tmp / "out", "wb") as out, open(tmp / "err", "wb") as err:
            p = subprocess.Popen(
                [*line, *args],
                stdout=out,
                stderr=err,
                env={**clean, **(env or {})},
                cwd=cwd or self.tmp,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
            )
        self.started.append(Launched(p, tmp, logs))
        return self.started[-1]

    def run(self, *args: str, **options: Any) -> Launched:
        """`onward run` to its end."""
        job = self.start(*args, **options)
        job.wait()
        return job

    def stub_torch(self) -> dict[str, str]:
        """An environment whose torch is empty: for what is about processes, a warm parent that is warm at once."""
        package = self.tmp / "stub" / "torch"
        for name in ("__init__", "_dynamo", "distributed", "nn/__init__", "nn/parallel"):
            path = package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        others = os.environ.get("PYTHONPATH")  # empty, it would stand for the current directory
        return {"PYTHONPATH": os.pathsep.join([str(package.parent), *([others] if others else [])])}

    def go(self, name: str) -> None:
        """Let ranks pass their `wait_for(name)`."""
        (self.tmp / name).touch()


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))
