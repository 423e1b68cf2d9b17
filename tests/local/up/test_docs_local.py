"""The commands of docs/local.md, run as they stand and in their order, on a cluster of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onward.agent import control
from onward.cli.main import main
from onward.local import wiring

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


@pytest.mark.skipif(bool(wiring.possible()), reason="the page tells what root gets")
def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hello.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONWARD_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(control, "bases", lambda: [tmp_path])  # `onward status` tells of no jobs but ours
    said = {}
    try:
        for command in commands():
            code = main(command.split()[1:])
            captured = capfd.readouterr()
            assert code == 0, f"{command}\n{captured.out}{captured.err}"
            said[command] = captured.out
    finally:
        main(["down"])
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
