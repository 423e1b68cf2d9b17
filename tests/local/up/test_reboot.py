"""The machine loses power: all processes, namespaces and control groups are gone, the state directory is not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from onecluster import OneCluster, onward_local, processes_with

from onward.local import plan, processes, wiring
from onward.local.shim import cgroups, linux

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: none
    command: [sh, -c, "date >> DIR/starts; sleep 600"]
    volumeMounts: [{name: v, mountPath: DIR}]
  volumes: [{name: v, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: none, command: [sleep, "600"]}]
"""


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneCluster]:
    why = wiring.possible()
    if why:
        pytest.skip(f"pods cannot have namespaces of their own here: {why}")
    cluster = OneCluster(tmp_path / "state", "--nodes", "1")
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.mark.nightly
def test_a_reboot(one: OneCluster, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    one.apply(PODS.replace("DIR", str(tmp_path / "place")))
    for name in ("stays", "once"):
        one.ready(name)
    power_off(one.state, [one.pod(name)["metadata"]["uid"] for name in ("stays", "once")])
    for file in (one.state / "run").glob("*.pid"):  # numbers begin anew: others have them now
        ticks = linux.start_time(os.getpid()).partition("@")[0]
        file.write_text(f"{os.getpid()} {ticks}@another-boot")
    assert "not running: supervisor, api" in onward_local("status", state=one.state, check=False).stdout

    assert "Going on with the cluster" in onward_local("up", state=one.state).stdout
    one.until(lambda: one.container("stays").get("restartCount") == 1, "it runs again")
    one.event("stays", "the pod's supervisor was gone")
    last = one.container("stays")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "ContainerStatusUnknown")
    starts = one.state / "nodes/node-1/pods" / one.pod("stays")["metadata"]["uid"] / "volumes/v/starts"
    one.until(lambda: len(starts.read_text().splitlines()) == 2, "it has its files again")
    status = one.phase("once", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"

    # What a file system can do when power fails. Taking it down (the fixture does) must leave nothing all the same.
    (one.state / plan.FILE).write_text("")
    p = onward_local("up", state=one.state, check=False)
    assert p.returncode == 1
    assert "cannot be read" in p.stderr
    assert "onward down removes what is there" in p.stderr
    one.down()
    assert not one.state.exists()
    assert not processes.strays(one.state)
    assert not [n for n in os.listdir("/run/netns") if n.startswith(plan.cluster_id(one.state))]


def power_off(state: Path, uids: list[str]) -> None:
    """All at once: nobody is left who could start another one."""
    deadline = time.monotonic() + 30
    while found := _everybody(state, uids):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        assert time.monotonic() < deadline
    wiring.Wiring(plan.cluster_id(state), plan.load(state)).remove_all()
    group = cgroups.find(plan.cluster_id(state))
    group.kill()
    group.remove()


def _everybody(state: Path, uids: list[str]) -> list[int]:
    shims = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_shim(pid, state)]
    pods = [pid for uid in uids for pid in processes_with(f"ONWARD_CONTAINER={uid}/".encode())]
    return [pid for pid in {*processes.strays(state), *shims, *pods} if linux.start_time(pid)]


def _is_shim(pid: int, state: Path) -> bool:
    try:
        return f"{state}/nodes/".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
