"""kill -9 of each process of the cluster while a pod runs: the pod does not notice, and the cluster goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

import pytest
from kernel import alive
from onecluster import OneCluster, a_pod

ON_NODE_1 = {"kubernetes.io/hostname": "node-1"}


@pytest.fixture(scope="module")
def runs(cluster: OneCluster) -> OneCluster:
    cluster.apply(a_pod("kill-runs", nodeSelector=ON_NODE_1))
    cluster.ready("kill-runs")
    return cluster


@pytest.mark.parametrize("part", ["node-1", "controllers", "operator", "network", "api", "supervisor", "guard"])
def test_kill_9_of(runs: OneCluster, part: str) -> None:
    before, old = runs.pids("kill-runs"), runs.part(part)
    assert len(before) == 1
    os.kill(old, signal.SIGKILL)
    runs.until(lambda: runs.part(part) != old and alive(runs.part(part)), f"a new {part}")
    name = f"kill-after-{part}"
    runs.apply(a_pod(name, "true", restartPolicy="Never", nodeSelector=ON_NODE_1))
    runs.phase(name, "Succeeded")  # the cluster still schedules and runs pods
    assert runs.pids("kill-runs") == before
    assert alive(before[0])
    assert runs.container("kill-runs")["restartCount"] == 0


ASKS = """
import itertools, socket, struct
name = b"".join(bytes([len(w)]) + w for w in b"kubernetes default svc cluster local".split())
question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + name + bytes([0, 0, 1, 0, 1])
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.connect(("10.96.0.10", 53))
names.settimeout(1)
for n in itertools.count():
    try:
        names.send(question)
        names.recv(1000)
        socket.create_connection(("10.96.0.1", 443), timeout=30).close()
        print(n, flush=True)
    except TimeoutError:
        pass  # a packet was on its way through what was killed
    except OSError as e:
        print("refused", e, flush=True)
"""


def test_nobody_is_refused_while_the_network_process_is_started_anew(runs: OneCluster) -> None:
    runs.apply(a_pod("kill-asks", "python3", "-c", ASKS))
    runs.ready("kill-asks")

    def asked() -> list[str]:
        return runs.logs("kill-asks").split("\n")[:-1]

    runs.until(lambda: len(asked()) > 10, "it asks")
    old = runs.part("network")
    os.kill(old, signal.SIGKILL)
    runs.until(lambda: runs.part("network") != old and alive(runs.part("network")), "a new network process")
    seen = len(asked())
    runs.until(lambda: len(asked()) > seen + 10, "it is answered again")
    assert not [line for line in asked() if not line.isdigit()]
    runs.delete("kill-asks")


def test_garbage_for_a_shim(runs: OneCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = runs.pod("kill-runs")["metadata"]["uid"]
    before = runs.pids("kill-runs")
    monkeypatch.chdir(runs.state / "nodes" / "node-1" / "pods" / uid)  # the address of a socket is short
    orders = b'5\n[1]\n{"op": 5}\n{"op":"stop","grace_s":"soon"}'
    for data in (bytes(range(256)), b"[" * 100_000, orders, b"x" * (2 << 20)):
        with socket.socket(socket.AF_UNIX) as desk, contextlib.suppress(ConnectionError):  # it may hang up on us
            desk.settimeout(30)
            desk.connect("shim.sock")
            desk.sendall(data + b"\n")
            desk.shutdown(socket.SHUT_WR)
            while desk.recv(65536):  # until it has read all, and closed
                pass
    assert runs.pids("kill-runs") == before
    assert runs.container("kill-runs")["restartCount"] == 0


def test_kill_9_of_a_shim(runs: OneCluster) -> None:
    """The one process whose death a pod notices: its containers end with it, and are started again."""
    [before] = runs.pids("kill-runs")
    uid = runs.pod("kill-runs")["metadata"]["uid"]
    place = runs.state / "nodes" / "node-1" / "pods" / uid
    facts = json.loads((place / "state.json").read_text())
    os.kill(facts["pid"], signal.SIGKILL)
    runs.until(lambda: runs.container("kill-runs")["restartCount"] == 1, "a restart")
    found = runs.container("kill-runs")
    assert found["lastState"]["terminated"]["exitCode"] == 137
    assert not alive(before)
    runs.ready("kill-runs")
    runs.delete("kill-runs")
    runs.gone("kill-runs")
