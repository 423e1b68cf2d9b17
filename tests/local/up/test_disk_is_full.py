"""The disk under a whole cluster is full for a while: pods run on, nothing is started twice, and all is well after."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel import alive
from onecluster import OneCluster, a_pod

from onward.kube.client import ApiError
from onward.kube.objects import CONFIGMAPS
from onward.local import processes
from onward.local.plan import load
from onward.local.shim import linux

WRITES = ("sh", "-c", "while true; do echo line; sleep 0.1; done")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not linux.may_mount():
        pytest.skip("MAY NOT MOUNT HERE: a small disk cannot be made")
    place = tmp_path / "disk"
    place.mkdir()
    linux.mount("none", str(place), "tmpfs", data="size=24m")
    try:
        yield place
    finally:
        linux.umount(str(place))


@pytest.fixture
def one(disk: Path) -> Iterator[OneCluster]:
    cluster = OneCluster(disk / "state", "--nodes", "1", "--network", "loopback")
    try:
        yield cluster
    finally:
        (disk / "fill").unlink(missing_ok=True)
        cluster.down()


@pytest.mark.nightly
def test_a_full_disk_and_room_again(one: OneCluster, disk: Path) -> None:
    one.apply(a_pod("runs", *WRITES))
    one.ready("runs")
    main = one.pids("runs")[0]
    fill(disk / "fill")
    with pytest.raises(ApiError, match="disk is full; nothing was changed"):
        one.call(one.client.create(CONFIGMAPS, {"metadata": {"name": "no"}, "data": {"a": "x" * 100_000}}, "default"))
    old = {name: one.part(name) for name in ("supervisor", "operator", "node-1")}
    os.kill(old["supervisor"], signal.SIGKILL)
    one.until(lambda: supervisors(one) - {old["supervisor"]}, "another one, whom no file can name yet")
    for name in ("operator", "node-1"):
        os.kill(old[name], signal.SIGKILL)
    assert alive(main)

    (disk / "fill").unlink()
    for name, pid in old.items():
        one.until(lambda n=name, p=pid: one.part(n) != p and alive(one.part(n)), f"a new {name}")
    one.apply(a_pod("later", *WRITES))
    one.ready("later")
    assert one.pids("runs")[0] == main
    known = {one.part(part.name) for part in processes.parts(load(one.state))}
    known |= {one.part(name) for name in ("supervisor", "guard")}
    one.until(lambda: set(processes.strays(one.state)) <= known, "nobody is there twice")


def fill(file: Path) -> None:
    """To the last byte."""
    with open(file, "wb", buffering=0) as f:
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while f.write(b"x" * size):
                    pass


def supervisors(one: OneCluster) -> set[int]:
    found = processes.strays(one.state)
    return {pid for pid in found if b"onward.local.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_who_cannot_be_written_down_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "run").touch()  # no place for a file, whoever asks
    child = subprocess.Popen(["sleep", "600"])
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        processes.known(tmp_path, "api", child.pid)
    assert not alive(child.pid)
    child.wait(10)
