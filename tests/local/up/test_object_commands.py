"""`onward apply|get|describe|logs|wait|delete`, for people without kubectl, against the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from onecluster import OneCluster

from onward.agent import control
from onward.cli.main import main

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: cmd-one
  labels: {app: cmd, number: 4}
  annotations: {min-available: 4, flag: true}
spec:
  restartPolicy: Never
  containers: [{name: c, image: none, command: [sh, -c, "echo one; echo two; sleep 600"]}]
  terminationGracePeriodSeconds: 0
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cmd-map}
data: {a: b, day: 2026-01-02}
"""
BOMB = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
BAD_FILES = {
    BOMB.encode(): "too large: with its aliases written out",
    b"a: " + b"[" * 5000 + b"]" * 5000: "nested too deeply",
    bytes(range(256)): "it is not a text in UTF-8 (invalid start byte at byte 128)",
    b"apiVersion: v1\nkind: 5\nmetadata: {name: x}\n": "no object; apiVersion and kind are needed",
    b"apiVersion: v1\nkind: ConfigMap\nmetadata: [x]\n": "ConfigMap has no metadata.name",
    f"{OBJECT}data: {{a: .inf}}".encode(): "cannot be sent",
    f"{OBJECT}data: {{a: !!binary aGVsbG8=}}".encode(): "cannot be sent",
}


@pytest.fixture
def say(cluster: OneCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run a command; what it printed and how it ended."""
    monkeypatch.setenv("ONWARD_STATE", str(cluster.state))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(control, "bases", list)  # `onward status` tells of no jobs that others run here

    def run(*words: str, code: int = 0) -> str:
        found = main(list(words))
        captured = capfd.readouterr()
        assert found == code, captured.out + captured.err
        return captured.out + captured.err

    return run


def test_a_day_without_kubectl(say, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    assert say("apply", "-f", str(file)).splitlines() == ["pod/cmd-one created", "configmap/cmd-map created"]
    assert say("wait", "pod/cmd-one", "--for=condition=Ready", "--timeout=30s") == "pod/cmd-one condition met\n"
    assert say("apply", "-f", str(file)).splitlines() == ["pod/cmd-one unchanged", "configmap/cmd-map unchanged"]
    file.write_text(POD.replace("a: b", "a: c"))
    assert "configmap/cmd-map configured" in say("apply", "-f", str(tmp_path))

    lines = say("get", "pods", "-l", "app=cmd").splitlines()
    assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1].split()[:3] == ["cmd-one", "1/1", "Running"]
    assert "NODE" in say("get", "po", "cmd-one", "-o", "wide").splitlines()[0]
    assert say("get", "pod/cmd-one", "cm/cmd-map", "-o", "name").split() == ["pod/cmd-one", "configmap/cmd-map"]
    pod = json.loads(say("get", "pod", "cmd-one", "-o", "json"))
    assert pod["metadata"]["annotations"]["min-available"] == "4", "people forget quotes"
    assert pod["metadata"]["annotations"]["flag"] == "true"
    assert yaml.safe_load(say("get", "cm", "cmd-map", "-o", "yaml"))["data"] == {"a": "c", "day": "2026-01-02"}
    assert "NAMESPACE" in say("get", "svc", "-A").splitlines()[0]
    assert say("get", "pods", "-l", "app=nobody") == "No resources found in default namespace.\n"
    assert say("get", "nodes", "-l", "app=nobody") == "No resources found\n"
    lines = [line for line in say("get", "pods,cm").splitlines() if "/cmd-" in line]
    assert [line.split("/")[0] for line in lines] == ["pod", "configmap"]

    assert say("logs", "cmd-one") == "one\ntwo\n"
    assert say("logs", "pod/cmd-one", "--tail", "1", "--since", "1h") == "two\n"
    text = say("describe", "pod", "cmd-one")
    assert "Name:         cmd-one" in text
    assert "Successfully assigned default/cmd-one" in text

    assert "did you mean pod" in say("get", "podz", code=2)
    assert "not found" in say("get", "pod", "nobody", code=1)
    assert "the forms are" in say("get", "pods", "-o", "xml", code=2)
    for time in ("soon", "nan"):  # not one that never comes
        assert "is not a time" in say("wait", "pod/x", "--timeout", time, code=2)
    assert f"did you mean {file}?" in say("apply", "-f", str(tmp_path / "pdo.yaml"), code=2)
    assert "timed out" in say("wait", "pod/nobody", "--timeout", "0", code=1)
    assert "which pods? name them" in say("delete", "pods", code=2)
    file.write_text("a: [")
    assert str(file) in say("apply", "-f", str(file), code=2)
    file.write_text("kind: Pod\n---\n{apiVersion: v1, kind: Pod}\n---\n5\n")
    problems = say("apply", "-f", str(file), code=2)
    assert "document 1: no object" in problems
    assert "document 2: Pod has no metadata.name" in problems
    for bad, told in BAD_FILES.items():
        file.write_bytes(bad)
        assert told in say("apply", "-f", str(file), code=2)
    file.write_text("{apiVersion: example.com/v1, kind: Nonsense, metadata: {name: x}}")
    assert "is its CRD installed?" in say("apply", "-f", str(file), code=1)

    assert "deleted" in say("delete", "pod", "cmd-one")
    assert "not found" in say("get", "pod", "cmd-one", code=1)
    assert "deleted" in say("delete", "cm/cmd-map")


def test_status_and_chaos_speak_of_the_cluster(say) -> None:
    assert "node-1    Ready" in say("status")
    found = json.loads(say("status", "-o", "json"))
    assert (found["nodes"]["node-1"], found["api"], found["jobs"]) == ("Ready", "answers", [])
    assert "write onward chaos node stop|start" in say("chaos", "node", "explode", code=2)
    assert "there is no node 'node-9'" in say("chaos", "node", "stop", "node-9", code=2)
