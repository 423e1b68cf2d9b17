"""`kubectl attach` and `run -i`: a container's own input and terminal; and terminals of `exec`."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import machine
import pytest
from kubernetes import client
from kubernetes.config import load_kube_config
from kubernetes.stream import stream
from onecluster import OneCluster, a_pod

pytestmark = pytest.mark.skipif(not machine.use_kubectl(), reason=machine.NO_KUBECTL)
Kubectl = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def kubectl(cluster: OneCluster) -> Kubectl:
    def call(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["kubectl", "--kubeconfig", str(cluster.state / "kubeconfig"), *words]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

    return call


class Terminal:
    """kubectl with a terminal of its own."""

    def __init__(self, cluster: OneCluster, *words: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvp("kubectl", ["kubectl", "--kubeconfig", str(cluster.state / "kubeconfig"), *words])
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text.encode() not in self.seen:
            assert select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self._fd, 65536)

    def end(self, number: int = 0) -> int:
        os.kill(self._pid, number)
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def test_run_with_input_gives_and_takes_every_byte(kubectl: Kubectl, tmp_path: Path) -> None:
    text, file = random.Random(5).randbytes(1_500_000), tmp_path / "in"
    words = ("-i", "--rm", "--quiet", "--restart=Never", "--image=none", "--command", "--", "sh", "-c")
    p = kubectl("run", "att-through", *words, f"cat > {file}; cat {file}; exit 5", stdin=text)
    assert p.returncode == 5, p.stderr
    assert hashlib.sha256(p.stdout).digest() == hashlib.sha256(text).digest()


def test_a_container_that_takes_no_input_says_so(cluster: OneCluster) -> None:
    cluster.apply(a_pod("att-none"))
    cluster.ready("att-none")
    command = ["kubectl", "--kubeconfig", str(cluster.state / "kubeconfig"), "attach", "-i", "att-none"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert p.stderr is not None
        seen = b""
        while b"takes no input" not in seen:
            line = p.stderr.readline()
            assert line, seen
            seen += line
        p.kill()


def test_a_shell_that_people_come_back_to(cluster: OneCluster) -> None:
    cluster.apply(a_pod("att-shell", "sh", container={"stdin": True, "tty": True}))
    cluster.ready("att-shell")
    first = Terminal(cluster, "attach", "-it", "att-shell")
    first.until("press")
    first.type("word=kept; echo $TERM-$((40 + 2)) $(tty)\n")
    first.until("xterm-42 /dev/pts/")
    first.type("\x03")
    first.end(signal.SIGKILL)
    second = Terminal(cluster, "attach", "-it", "att-shell")
    second.until("press")
    second.type("echo still-$word; exit 3\n")
    second.until("still-kept")
    second.end()
    cluster.until(lambda: cluster.status("att-shell")["containerStatuses"][0]["restartCount"] == 1, "the shell ended")
    last = cluster.status("att-shell")["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 3


def test_typing_to_a_command_that_does_not_read_does_not_hold_the_node(cluster: OneCluster, kubectl: Kubectl) -> None:
    cluster.apply(a_pod("att-busy"))
    cluster.ready("att-busy")
    config = client.Configuration()
    load_kube_config(str(cluster.state / "kubeconfig"), client_configuration=config)
    ask = client.CoreV1Api(client.ApiClient(config)).connect_get_namespaced_pod_exec
    words = ["sh", "-c", "stty raw; echo begun; sleep 600"]
    deaf = stream(ask, "att-busy", "default", command=words, stdin=True, stdout=True, tty=True, _preload_content=False)
    while "begun" not in deaf.read_stdout(timeout=60):
        assert deaf.is_open()
    for _ in range(64):
        deaf.write_stdin("x" * 4000)
    assert kubectl("exec", "att-busy", "--", "echo", "free").stdout == b"free\n"
    deaf.close()
