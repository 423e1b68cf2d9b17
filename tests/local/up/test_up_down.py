"""`onward up`, `down` and `status` as people meet them, mistakes included."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kernel import free_port
from onecluster import ROOT, OneCluster, a_pod, onward_local
from waiting import until

from onward.errors import UsageError
from onward.local import kubeconfig, plan
from onward.local.__main__ import main


def test_a_second_up_changes_nothing(cluster: OneCluster, tmp_path: Path) -> None:
    before = (cluster.state / "cluster.json").read_text()
    p = onward_local("up", state=cluster.state)
    assert "up already: 3 nodes" in p.stdout
    assert "nothing was changed" in p.stdout
    p = onward_local("up", "--nodes", "5", "--gpus", "1", state=cluster.state, check=False)
    assert p.returncode == 2
    assert "it has 3 nodes, not 5" in p.stderr
    assert "nvidia.com/gpu 2, not 1" in p.stderr
    same = ["--node-file", str(cluster.state.parent / "nodes.yaml"), "--gpus", "2", "--cpus", "8", "--memory", "16Gi"]
    assert "nothing was changed" in onward_local("up", *same, state=cluster.state).stdout
    other = tmp_path / "other.yaml"
    other.write_text("nodes: [{name: node-1}]\n")
    words = ["--node-file", str(other), "--evict-after", "7"]
    p = onward_local("up", *words, state=cluster.state, check=False)
    assert p.returncode == 2
    assert f"its nodes are not those of {other}; its --evict-after is 1, not 7" in p.stderr
    assert (cluster.state / "cluster.json").read_text() == before


def test_status(cluster: OneCluster) -> None:
    p = onward_local("status", state=cluster.state)
    assert "api       answers" in p.stdout
    assert "node-3    Ready" in p.stdout
    assert "not running" not in p.stdout


def test_mistakes_are_told_at_once_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"

    def say(*words: str, state: Path = state) -> tuple[int, str]:
        code = main([*words, "--state", str(state)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    def refused(*words: str) -> str:
        code, text = say("up", *words)
        assert code == 2, text
        assert not (state / "cluster.json").exists()
        return text

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port} cannot be used" in refused("--port", port)
    assert "1 to 250 nodes" in refused("--nodes", "0")
    assert "'lots' is not a quantity" in refused("--memory", "lots")
    assert "write SERVER:/PATH=DIR" in refused("--nfs", "nonsense")
    assert "is not a directory" in refused("--nfs", "a:/b=/no/such/place")
    assert "No such file" in refused("--node-file", "/no/such/file")
    assert "invalid choice" in refused("--network", "magic")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    assert "is not empty and holds no cluster" in say("up", state=tmp_path / "full")[1]
    assert "cannot use /proc/onward" in say("up", state=Path("/proc/onward"))[1]
    assert "nothing to take down" in say("down")[1]
    assert "onward up starts one" in say("status")[1]


def _starting(state: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onward.local", "up", "--nodes", "1", "--network", "loopback"]
    command += ["--state", str(state)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


@pytest.mark.nightly
def test_two_at_once_are_one_cluster(tmp_path: Path) -> None:
    state = tmp_path / "state"
    try:
        said = [p.communicate(timeout=120)[0] for p in (_starting(state), _starting(state))]
        assert sorted("up already" in text for text in said) == [False, True], said
        assert sum("The cluster is up: 1 node" in text for text in said) == 1, said
    finally:
        onward_local("down", state=state)
    assert not state.exists()


def test_down_in_the_middle_of_up(tmp_path: Path) -> None:
    (state := tmp_path / "state").mkdir()
    (state / plan.UNFINISHED).touch()  # left by one that was killed in its first moment
    up = _starting(state)
    try:
        until(lambda: (state / "run").exists(), "it is being started")
        assert "The cluster is down." in onward_local("down", state=state).stdout
        assert up.communicate(timeout=120)[0] == "onward: the cluster was taken down while it was starting\n"
        assert up.returncode == 1
        assert not state.exists()
    finally:
        up.kill()
        up.communicate(timeout=120)
        onward_local("down", state=state, check=False)


def test_a_file_of_nodes(tmp_path: Path) -> None:
    default = plan.uniform(1, "8", "16Gi", 0)[0]
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes:\n"
        "- {name: big, cpus: 64, memory: 1Ti, gpus: 8, labels: {zone: a}, taints: ['gpu=yes:NoSchedule']}\n"
        "- {count: 2, resources: {huawei.com/Ascend910: 8}}\n"
    )
    nodes = plan.from_file(file, default)
    assert [n.name for n in nodes] == ["big", "node-2", "node-3"]
    assert nodes[0].capacity == {"cpu": "64", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    assert nodes[0].taints == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert nodes[2].capacity["huawei.com/Ascend910"] == "8"
    file.write_text("- {name: a, cpuz: 1}\n- {name: a, cpus: x, taints: [bad]}\n- 5\n- {count: 0}\n")
    with pytest.raises(UsageError) as refused:
        plan.from_file(file, default)
    text = "\n".join(refused.value.problems)
    for part in ("unknown cpuz", "'x' is not a quantity", "taints[0]", "nodes[2]: not a mapping", "nodes[3].count"):
        assert part in text
    assert "two nodes are called 'a'" in text


def test_merging_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, ours = tmp_path / "config", tmp_path / "ours"
    monkeypatch.setenv("KUBECONFIG", str(mine))
    other = {"name": "work", "cluster": {"server": "https://work"}}
    theirs = {"clusters": [other], "users": [{"name": "me", "user": {"token": "t"}}], "contexts": [], "extra": 1}
    mine.write_text(yaml.safe_dump(theirs))
    cluster = {"server": "https://127.0.0.1:1"}
    ours.write_text(
        yaml.safe_dump({"clusters": [{"name": "x", "cluster": cluster}], "users": [{"name": "x", "user": {}}]})
    )
    kubeconfig.merge(ours)
    kubeconfig.merge(ours)
    data = yaml.safe_load(mine.read_text())
    assert data["current-context"] == "onward"
    assert [c["name"] for c in data["clusters"]] == ["work", "onward"]
    assert data["extra"] == 1
    kubeconfig.unmerge("https://somebody-else")
    assert len(yaml.safe_load(mine.read_text())["clusters"]) == 2
    kubeconfig.unmerge("https://127.0.0.1:1")
    data = yaml.safe_load(mine.read_text())
    assert data["clusters"] == [other]
    assert data["users"] == theirs["users"]


def web_pod(name: str, port: int) -> str:
    return a_pod(name, "python3", "-m", "http.server", str(port), container={"ports": [{"containerPort": port}]})


@pytest.mark.nightly
def test_pods_that_share_the_network_of_the_machine(tmp_path: Path) -> None:
    """What people get who are not root, as far as root can try it."""
    one = OneCluster(tmp_path / "state", "--nodes", "1", "--network", "loopback")
    try:
        port = free_port()
        one.apply(web_pod("first", port))
        status = one.ready("first")
        assert status["podIP"].startswith("127.")
        one.until(lambda: _answers(port), "it listens")
        one.apply(web_pod("second", port))
        one.event("second", f"port {port} of container c is in use on this machine")
        # Its objects outlive it when that is asked for.
        onward_local("down", "--keep", state=one.state)
        assert not _answers(port)
        with socket.create_server(("127.0.0.1", int((one.state / "port").read_text()))):
            p = onward_local("up", state=one.state, check=False)
            assert p.returncode == 2
            assert "was taken meanwhile" in p.stderr
        p = onward_local("up", state=one.state)
        assert "Going on with the cluster" in p.stdout
        one.ready("first")
    finally:
        one.down()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", ["queue", "onward"])
def test_modules_of_the_current_directory_are_not_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    code = "import sys; del sys.path[0]; from onward.cli.cluster import cluster_status; cluster_status()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ONWARD_STATE": str(tmp_path / "state")}
    words = [sys.executable, "-c", code]
    p = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False)
    assert p.stdout == f"No cluster in {tmp_path / 'state'}; onward up starts one.\n", p.stdout + p.stderr
