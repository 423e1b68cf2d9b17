"""`onward run` as the main process of a container: what a pod has, as near as one comes without a container engine.

Namespaces of its own (processes, mounts, network, IPC, host name), process 1, a user without a name or a home, no
capability, a read-only root with one writable directory, 64 MB of shared memory, a limit on memory. Skipped, with a
loud line, where such a place cannot be made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel import alive
from waiting import until

from onward.local.shim import cgroups

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
NEEDED = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, ROOT, "/usr")}
INSIDE = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$NEW"
for d in $NEEDED; do mkdir -p "$NEW$d"; mount --rbind "$d" "$NEW$d"; mount -o remount,bind,ro "$NEW$d"; done
for d in bin lib lib64 sbin; do [ ! -L /$d ] || ln -s "$(readlink /$d)" "$NEW/$d"; done
mkdir -p "$NEW/dev/shm" "$NEW/proc" "$NEW/scratch" "$NEW/etc"
for f in null zero random urandom; do touch "$NEW/dev/$f"; mount --bind /dev/$f "$NEW/dev/$f"; done
echo 'root:x:0:0:root:/root:/bin/sh' > "$NEW/etc/passwd"
echo '127.0.0.1 localhost' > "$NEW/etc/hosts"
mount -t tmpfs -o size=64m,mode=1777 shm "$NEW/dev/shm"
mount -t proc proc "$NEW/proc"
mount --bind "$EMPTY" "$NEW/scratch"
mkdir -p "$NEW$GROUP_TOP"
mount --bind "$GROUP" "$NEW$GROUP_TOP"
mount -o remount,ro "$NEW"
ip link set lo up 2>/dev/null || true
cd "$NEW" && exec chroot . /usr/bin/setpriv --no-new-privs --bounding-set -all --inh-caps -all \\
  --reuid 1000 --regid 1000 --clear-groups /usr/bin/env -i HOME=/ TMPDIR=/scratch PATH=/usr/bin:/bin \\
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$SOURCE" sh -c 'cd "$0" && exec "$@"' "$SOURCE" "$@"
"""


def why_not() -> str:
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("unshare", "setpriv", "chroot") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    probe = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"]
    return "" if subprocess.run(probe, capture_output=True, check=False).returncode == 0 else "needs namespaces"


class Container:
    """One container, from outside."""

    def __init__(self, tmp: Path, memory_mb: int, *command: str) -> None:
        self.tmp = tmp
        (tmp / "empty").mkdir(exist_ok=True)
        (tmp / "empty").chmod(0o1777)
        (tmp / "root").mkdir(exist_ok=True)
        self.group = cgroups.find(f"onward-test-{os.getpid()}-{tmp.name}")
        if not self.group.paths:
            pytest.skip("NO CONTAINER REHEARSAL: there are no control groups here to set a limit on memory with")
        self.group.create()
        problem = self.group.limit(memory_mb << 20, 0)
        if problem:
            self.group.remove()
            pytest.skip(f"NO CONTAINER REHEARSAL: {problem}")
        group = next(path for path in self.group.paths if self.group.version == 2 or "/memory/" in path)
        env = {
            **os.environ,
            "NEW": str(tmp / "root"),
            "EMPTY": str(tmp / "empty"),
            "NEEDED": " ".join(sorted(map(str, NEEDED))),
            "SOURCE": str(ROOT),
            "GROUP": group,
            "GROUP_TOP": "/sys/fs/cgroup" + ("" if self.group.version == 2 else "/memory"),
        }
        namespaces = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        self._out = (tmp / "out").open("wb")
        self.process = subprocess.Popen(
            [*namespaces, "sh", "-c", INSIDE, "sh", *command],
            env=env,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: self.group.enter(os.getpid()),
        )

    @property
    def said(self) -> str:
        return (self.tmp / "out").read_text(errors="replace")

    @property
    def first(self) -> int:
        """Process 1 of the container, as the machine numbers it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(until(lambda: children.read_text().split(), "the container has a process")[0])

    @property
    def kills(self) -> int:
        return self.group.oom_kills()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._out.close()
        with contextlib.suppress(OSError):
            self.group.kill()
            self.group.remove()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Any]:
    reason = why_not()
    if reason:
        pytest.skip(f"NO CONTAINER REHEARSAL: {reason}")
    made: list[Container] = []

    def make(memory_mb: int, *args: str) -> Container:
        command = [sys.executable, "-m", "onward", "run", "--hang-floor", "4", "-o", "json", *args]
        made.append(Container(tmp_path, memory_mb, *command))
        return made[-1]

    yield make
    for each in made:
        each.end()


def outcome(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said[said.index("\n{") + 1 : said.rindex("}") + 1])
    return found


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_a_rank_is_mended_in_a_container(container: Any, kind: str) -> None:
    job = container(3000, "--nproc-per-node", "2", "--chaos", f"kind={kind},rank=1,step=60",
                    "tests/scripts/paced.py", "--steps", "100", "--pace", "0.05")  # fmt: skip
    assert job.process.wait(300) == 0, job.said
    (incident,) = outcome(job.said)["incidents"]
    assert incident["policy"] == "recover-in-place"
    assert job.kills == 0


def test_spares_do_not_use_up_the_memory_of_a_container(container: Any) -> None:
    """The ranks fit. With their spares they do not, and on Kubernetes the kernel ends the whole container then."""
    job = container(1650, "--nproc-per-node", "2", "--chaos", "kind=kill,rank=1,step=25",
                    "tests/scripts/large.py", "--mb", "100", "--steps", "40")  # fmt: skip
    assert job.process.wait(400) == 0, job.said
    assert job.kills == 0
    assert "not enough free memory for spares" in job.said
    (incident,) = outcome(job.said)["incidents"]
    assert incident["policy"] == "recover-in-place"


def test_process_1_ends_in_order_within_the_grace_period(container: Any) -> None:
    job = container(3000, "--nproc-per-node", "2", "tests/scripts/paced.py", "--steps", "100000", "--pace", "0.05")
    until(lambda: "step 10" in job.said or "committed" in job.said, lambda: f"it trains\n{job.said}", 200)
    first = job.first
    os.kill(first, 15)
    assert job.process.wait(60) == 128 + 15, job.said
    until(lambda: not alive(first), "it is gone")
    assert "Stopped by SIGTERM" in job.said
