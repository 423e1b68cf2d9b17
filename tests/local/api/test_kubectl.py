"""Stock kubectl, as people use it. One story per test; the text it prints is what is looked at."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from apiserver import ApiProcess

Kubectl = Callable[..., subprocess.CompletedProcess[str]]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: x}}
spec:
  containers:
  - {name: a, image: b, env: [{name: X, value: "1"}]}
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {selector: {app: x}, ports: [{port: 80}]}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: kubectl-node}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
  addresses: [{type: InternalIP, address: 10.0.0.1}]
  nodeInfo: {kubeletVersion: v1.35.0}
"""
WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.kubectl.example.com}
spec:
  group: kubectl.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wg], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {name: State, type: string, jsonPath: ".status.conditions[-1].type"}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: what the widget should be
            required: [size]
            properties:
              replicas: {type: integer, minimum: 0, default: 1}
              size: {type: integer, maximum: 10, description: how big}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
WIDGET = """
apiVersion: kubectl.example.com/v1
kind: Widget
metadata: {name: w}
spec: {size: 5}
"""


@pytest.fixture
def k(kubectl: Kubectl, namespace: str) -> Kubectl:
    def run(*args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return kubectl("-n", namespace, *args, stdin=stdin, check=check)

    return run


def test_apply_get_describe_patch_label_delete(k: Kubectl) -> None:
    both = f"{POD}---{SERVICE}"
    assert k("apply", "-f", "-", stdin=both).stdout == "pod/p1 created\nservice/s created\n"
    assert k("apply", "-f", "-", stdin=both).stdout == "pod/p1 unchanged\nservice/s unchanged\n"
    changed = both.replace("image: b", "image: c")
    assert k("apply", "-f", "-", stdin=changed).stdout == "pod/p1 configured\nservice/s unchanged\n"
    lines = k("get", "pods", "-o", "wide").stdout.splitlines()
    assert lines[0].split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
        "NOMINATED",
        "NODE",
        "READINESS",
        "GATES",
    ]
    assert lines[1].split()[:4] == ["p1", "0/1", "Pending", "0"]
    assert re.search(r"s +ClusterIP +[\d.]+ +<none> +80/TCP", k("get", "svc").stdout)
    described = k("describe", "pod", "p1").stdout
    assert re.search(r"QoS Class: +BestEffort", described)
    assert "Image:      c" in described
    assert "Session Affinity:" in k("describe", "svc", "s").stdout
    k("patch", "svc", "s", "-p", '{"spec":{"ports":[{"name":"more","port":81}]}}', check=False)
    k("label", "pod", "p1", "z=1")
    k("annotate", "pod", "p1", "note=hello")
    assert k("get", "pod", "p1", "-o", "jsonpath={.metadata.labels.z} {.metadata.annotations.note}").stdout == "1 hello"
    assert k("get", "pods", "-l", "z=1", "-o", "name").stdout == "pod/p1\n"
    assert "app=x,z=1" in k("get", "pods", "--show-labels").stdout
    said = k("delete", "-f", "-", stdin=both).stdout  # from 1.34 on: 'pod "p1" deleted from NAME namespace'
    assert re.fullmatch(r'pod "p1" deleted.*\nservice "s" deleted.*\n', said)
    assert "No resources found" in k("get", "pods").stderr


def test_mistakes_are_said(k: Kubectl) -> None:
    typo = k("apply", "-f", "-", stdin=POD.replace("image: b", "imagge: b"), check=False)
    assert typo.returncode == 1
    assert 'strict decoding error: unknown field "spec.containers[0].imagge"' in typo.stderr
    wrong = k("apply", "-f", "-", stdin=POD.replace("name: p1", "name: P1"), check=False)
    assert 'The Pod "P1" is invalid: metadata.name' in wrong.stderr
    assert 'pods "nope" not found' in k("get", "pod", "nope", check=False).stderr
    assert 'the server doesn\'t have a resource type "nosuch"' in k("get", "nosuch", check=False).stderr
    assert (
        'no matches for kind "Nothing"'
        in k("apply", "-f", "-", stdin="apiVersion: v1\nkind: Nothing\nmetadata: {name: x}\n", check=False).stderr
    )


def test_server_side_apply_diff_and_dry_run(k: Kubectl) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {one: '1', two: '2'}\n"
    assert k("apply", "--server-side", "-f", "-", stdin=manifest).stdout == "configmap/a serverside-applied\n"
    k("patch", "cm", "a", "-p", '{"data":{"one":"9"}}')
    refused = k("apply", "--server-side", "-f", "-", stdin=manifest, check=False)
    assert 'conflict with "kubectl-patch" using v1: .data.one' in refused.stderr
    k("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
    assert k("get", "cm", "a", "-o", "jsonpath={.data.one}").stdout == "1"
    new = manifest.replace("'2'", "'3'")
    shown = k("diff", "--server-side", "-f", "-", stdin=new, check=False)
    assert shown.returncode == 1
    assert '+  two: "3"' in shown.stdout
    k("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=new)
    assert k("get", "cm", "a", "-o", "jsonpath={.data.two}").stdout == "2"


def test_typed_objects_that_kubectl_sends_as_protobuf(k: Kubectl, api: ApiProcess) -> None:
    k("create", "configmap", "a", "--from-literal=x=y")
    k("create", "secret", "generic", "b", "--from-literal=x=y")
    assert k("get", "secret", "b", "-o", "jsonpath={.type} {.data.x}").stdout == "Opaque eQ=="
    made = k("create", "deployment", "d", "--image=i", "--replicas=2")
    if api.ours:
        assert "Warning: no controller for deployments runs here" in made.stderr
    made = k("create", "service", "nodeport", "np", "--tcp=80:80")
    if api.ours:
        assert "Warning: spec.type: nothing listens at the nodes' ports here" in made.stderr
    k("scale", "deployment", "d", "--replicas=4")
    assert k("get", "deploy", "d").stdout.splitlines()[1].split()[:2] == ["d", "0/4"]
    k("create", "job", "j", "--image=i")
    k("create", "priorityclass", "kubectl-test", "--value=5")
    assert "5" in k("get", "pc", "kubectl-test").stdout
    k("delete", "pc", "kubectl-test")
    k("create", "serviceaccount", "robot")
    assert k("create", "token", "robot").stdout.count(".") == 2
    k("run", "q", "--image=i", "--restart=Never", "--", "sleep", "1")
    assert k("get", "pod", "q", "-o", "jsonpath={.spec.containers[0].args} {.spec.restartPolicy}").stdout == (
        '["sleep","1"] Never'
    )


def test_nodes_cordon_taint_drain(k: Kubectl, api: ApiProcess, namespace: str) -> None:
    k("apply", "-f", "-", stdin=NODE)
    try:
        assert re.search(r"kubectl-node +Ready +<none>", k("get", "nodes").stdout)
        k("cordon", "kubectl-node")
        assert "Ready,SchedulingDisabled" in k("get", "node", "kubectl-node").stdout
        k("uncordon", "kubectl-node")
        k("taint", "node", "kubectl-node", "a=b:NoSchedule")
        assert "a=b:NoSchedule" in k("describe", "node", "kubectl-node").stdout
        k("run", "onnode", "--image=i", "--overrides", '{"spec":{"nodeName":"kubectl-node"}}')
        status = {"status": {"phase": "Succeeded"}}
        patch = "application/merge-patch+json"
        api.ok("PATCH", f"/api/v1/namespaces/{namespace}/pods/onnode/status", status, patch)
        drained = k("drain", "kubectl-node", "--force", "--ignore-daemonsets", "--timeout=20s")
        assert f"evicting pod {namespace}/onnode" in drained.stdout + drained.stderr
        assert k("get", "pod", "onnode", check=False).returncode == 1
    finally:
        k("delete", "node", "kubectl-node")


def test_custom_kinds_explain_wait_columns(k: Kubectl) -> None:
    k("apply", "-f", "-", stdin=WIDGETS)
    try:
        k("wait", "--for=condition=Established", "crd/widgets.kubectl.example.com", "--timeout=10s")
        k("apply", "-f", "-", stdin=WIDGET)
        assert "unchanged" in k("apply", "-f", "-", stdin=WIDGET).stdout
        k(
            "patch",
            "wg",
            "w",
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status":{"conditions":[{"type":"Made"}]}}',
        )
        lines = k("get", "wg").stdout.splitlines()
        assert [line.split() for line in lines] == [["NAME", "STATE"], ["w", "Made"]]
        explained = k("explain", "widget.spec").stdout
        assert "what the widget should be" in explained
        assert re.search(r"size\s+<integer> -required-\s+how big", explained)
        k("scale", "wg", "w", "--replicas=3")
        assert k("get", "wg", "w", "-o", "jsonpath={.spec.replicas}").stdout == "3"
        assert "widget.kubectl.example.com/w" in k("get", "all").stdout
        bad = k("patch", "wg", "w", "--type=merge", "-p", '{"spec":{"size":11,"replicas":-1}}', check=False)
        assert bad.stderr.count("* spec.") == 2
        k("wait", "--for=jsonpath={.spec.replicas}=3", "wg/w", "--timeout=10s")
    finally:
        k("delete", "crd", "widgets.kubectl.example.com")


def test_watch_edit_replace_events_and_discovery(k: Kubectl, api: ApiProcess, namespace: str, tmp_path: Path) -> None:
    k("apply", "-f", "-", stdin=POD)
    environment = {**os.environ, "KUBECONFIG": str(api.state / "kubeconfig")}
    command = [
        "kubectl",
        "-n",
        namespace,
        "get",
        "pods",
        "-w",
        "--no-headers",
        "-o",
        "custom-columns=L:.metadata.labels.l",
    ]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert watcher.stdout is not None
        assert watcher.stdout.readline().strip() == "<none>"
        k("label", "pod", "p1", "l=seen")
        assert watcher.stdout.readline().strip() == "seen"
    finally:
        watcher.kill()
        watcher.wait(10)
        assert watcher.stdout is not None
        watcher.stdout.close()
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/l: seen/l: edited/' \"$1\"\n")
    editor.chmod(0o755)
    os.environ["KUBE_EDITOR"] = str(editor)
    try:
        assert k("edit", "pod", "p1").stdout == "pod/p1 edited\n"
    finally:
        del os.environ["KUBE_EDITOR"]
    replaced = k("get", "pod", "p1", "-o", "json").stdout.replace('"edited"', '"replaced"')
    assert k("replace", "-f", "-", stdin=replaced).stdout == "pod/p1 replaced\n"
    event = {
        "metadata": {"name": "e"}, "type": "Normal", "reason": "Tested", "message": "all is well",
        "involvedObject": {"kind": "Pod", "name": "p1", "namespace": namespace, "apiVersion": "v1"},
        "lastTimestamp": "2099-01-01T00:00:00Z", "firstTimestamp": "2099-01-01T00:00:00Z", "count": 1,
    }  # fmt: skip
    api.ok("POST", f"/api/v1/namespaces/{namespace}/events", event)
    assert "all is well" in k("events", "--for", "pod/p1").stdout
    assert re.search(r"Normal +Tested +pod/p1 +all is well", k("get", "events").stdout)
    resources = k("api-resources").stdout
    assert re.search(r"pods +po +v1 +true +Pod", resources)
    assert "yes" in k("auth", "can-i", "create", "pods").stdout
    assert "admin" in k("auth", "whoami").stdout
    assert "apps/v1" in k("api-versions").stdout
    assert k("logs", "p1").stdout == "", "a pod without a node has said nothing"
    k("delete", "pod", "p1", "--cascade=foreground", "--timeout=20s")
