"""The commands in the README and the docs are run as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel import free_port
from waiting import until

from onward.checkpoints import disk

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.torch


def commands():
    """Every `onward ...` command in a console block, with where it stands."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.S):
            for line in block.splitlines():
                for command in line.split("#")[0].split(";"):
                    if command.strip().startswith("onward "):
                        found.append((path.name, command.strip()))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a script called train.py."""
    tmp = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "examples/ddp_min.py", tmp / "train.py")
    made = disk.Manifest(
        format=disk.FORMAT, job="j", run="r", step=1, world_size=1, torch="", reason="dump", created="", files=[]
    )
    (tmp / "ckpt/.tmp").mkdir(parents=True)
    disk.publish(tmp / "ckpt", tmp / "ckpt/.tmp", made, 3)
    return tmp


@pytest.fixture(scope="module")
def running(place):
    """A job that goes on for as long as it is needed."""
    command = [str(BIN / "onward"), "run", "--nproc-per-node", "4", "train.py", "--steps", "100000000"]
    with open(place / "out", "w") as out:
        p = subprocess.Popen(command, cwd=place, stdout=out, stderr=out)
    until(lambda: "step 10 " in (place / "out").read_text() or p.poll() is not None, "the job has begun")
    assert p.poll() is None, (place / "out").read_text()
    yield p
    p.terminate()
    assert p.wait(60) == 143


def test_there_are_commands():
    verbs = {c.split()[1] for _, c in commands()}
    assert {"run", "ps", "status", "chaos"} <= verbs


@pytest.mark.parametrize(("where", "command"), [c for c in commands() if c[1].split()[1] == "run"])
def test_a_run_of_the_docs(place, where, command):
    p = subprocess.run(
        command, shell=True, cwd=place, capture_output=True, text=True, timeout=240, check=False, env=_env()
    )
    assert p.returncode == 0, f"{where}: {command}\n{p.stderr[-2000:]}"
    assert "Succeeded" in p.stderr


@pytest.mark.parametrize(("where", "command"), list(dict.fromkeys(c for c in commands() if c[1].split()[1] != "run")))
def test_a_look_at_a_running_job(place, running, where, command):
    words = command.split()
    if words[1] in ("status", "chaos", "fault"):
        verb = 3 if words[1] == "fault" else 2
        command = " ".join([*words[:verb], str(running.pid), *words[verb:]])  # other jobs may run on this machine
    p = subprocess.run(
        command, shell=True, cwd=place, capture_output=True, text=True, timeout=240, check=False, env=_env()
    )
    assert p.returncode == 0, f"{where}: {command}\n{p.stdout}{p.stderr}"
    assert p.stdout


def _env():
    import os

    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def test_the_nodes_of_one_job(place):
    """docs/nodes.md: one command on each node. Here all nodes are this machine."""
    (place / "token").write_text("0123456789abcdef0123456789abcdef\n")
    block = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/nodes.md").read_text(), re.S)[0]
    lines = [line.split("#")[0].replace("10.0.0.1", "127.0.0.1").split() for line in block.splitlines()]
    port = str(free_port())
    started = []
    for _, *words in lines:
        words[words.index("--nproc-per-node") + 1] = "1"
        command = [str(BIN / "onward"), *words[:-1], "--master-port", port, words[-1], "--steps", "20"]
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, cwd=place, **out))
    try:
        said = [p.communicate(timeout=200)[0] for p in started]
        assert [p.returncode for p in started] == [0] * len(lines) == [0, 0, 0], said
        assert all("Succeeded" in text for text in said)
    finally:
        for p in started:
            p.kill()
            p.wait()
