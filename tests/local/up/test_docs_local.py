"""The commands of docs/local.md, run as they stand and in their order, on a cluster of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/local.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.S)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_page_has_commands() -> None:
    verbs = {c.split()[1] for c in commands()}
    assert {"up", "status", "apply", "get", "logs", "describe", "wait", "chaos", "delete", "down"} <= verbs


@pytest.mark.skipif(os.geteuid() != 0, reason="the page tells what root gets")
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text(blocks("yaml")[0])
    env = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
    env |= {"ONWARD_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    said = {}
    try:
        for command in commands():
            words = [sys.executable, "-m", "onward.cli.main", *command.split()[1:]]
            p = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
            assert p.returncode == 0, f"{command}\n{p.stdout}{p.stderr}"
            said[command] = p.stdout
    finally:
        down = [sys.executable, "-m", "onward.cli.main", "down"]
        subprocess.run(down, env=env, capture_output=True, timeout=120, check=False)
    assert "hello from hello" in said["onward logs hello"]
    assert "Running" in said["onward get pods -o wide"]
    assert "The cluster is down." in said["onward down"]
    assert not (tmp_path / "state").exists()


def test_the_node_file_of_the_page(tmp_path: Path) -> None:
    from onward.local.plan import from_file, uniform

    (tmp_path / "nodes.yaml").write_text(blocks("yaml")[1])
    nodes = from_file(tmp_path / "nodes.yaml", uniform(1, "8", "16Gi", 0)[0])
    assert len(nodes) == 5
    assert nodes[4].capacity["huawei.com/Ascend910"] == "8"
