"""Addresses, names, services, devices and ways in."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine
import pytest
from kubernetes import client
from kubernetes.config import load_kube_config
from kubernetes.stream import portforward, stream
from onecluster import OneCluster

from onward.kube.objects import NODES
from onward.local import plan as plans
from onward.local import up, wiring

SERVER = (
    "python3 -c \"from http.server import *; "
    "ThreadingHTTPServer(('', 8080), SimpleHTTPRequestHandler).serve_forever()\""
)
ASK = """
import json, socket, ssl, sys, time, urllib.request
def patiently(ask, limit_s=20):  # others may be there later than we are, and packets get lost
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return ask()
        except OSError as e:
            if time.monotonic() >= deadline:
                return str(e)
            time.sleep(0.1)
def get(url):
    return patiently(lambda: urllib.request.urlopen(url, timeout=5).status)
def find(name, limit_s=20):
    found = lambda: socket.getaddrinfo(name, 80, socket.AF_INET)
    return patiently(lambda: sorted({a[4][0] for a in found()}), limit_s)
def echo(name):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(1)
    return patiently(lambda: sock.sendto(b"hi", (name, 7)) and sock.recv(100).decode())
found = {"web": get("http://web"), "qualified": get("http://web.default.svc.cluster.local:80")}
found |= {name: find(name) for name in ("web", "head", "one.head", "kubernetes.default.svc", "alias")}
found["echo"] = echo("echo")
found["nothing.default"] = find("nothing.default", 0)
place = "/var/run/secrets/kubernetes.io/serviceaccount/"
request = urllib.request.Request("https://kubernetes.default.svc/api/v1/namespaces/" + open(place + "namespace").read())
request.add_header("Authorization", "Bearer " + open(place + "token").read())
context = ssl.create_default_context(cafile=place + "ca.crt")
found["api"] = json.load(urllib.request.urlopen(request, context=context))["metadata"]["name"]
found["name"], found["own"] = socket.gethostname(), find(socket.gethostname())
print(json.dumps(found))
"""
ECHO = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 7007))
while True:
    data, source = sock.recvfrom(100)
    sock.sendto(data + b" yourself", source)
"""
OBJECTS = Path(__file__).with_name("network.yaml")


@pytest.fixture(scope="module")
def pods(cluster: OneCluster) -> OneCluster:
    text = OBJECTS.read_text().replace("SERVER", json.dumps(SERVER), 2).replace("ASK", json.dumps(ASK), 1)
    text = text.replace("ECHO", json.dumps(ECHO), 1)
    cluster.apply(text)
    return cluster


def test_services_and_names(pods: OneCluster) -> None:
    one, two = pods.ready("net-one"), pods.ready("net-two")
    status = pods.phase("net-ask", "Succeeded")
    found = json.loads(pods.logs("net-ask"))
    assert found["qualified"] == 200
    assert found["echo"] == "hi yourself", "UDP, too"
    assert len(found["web"]) == 1
    assert found["web"][0].startswith("10.96.")
    assert found["one.head"] == [one["podIP"]]
    assert set(found["head"]) <= {one["podIP"], two["podIP"]}
    assert found["kubernetes.default.svc"] == ["10.96.0.1"]
    assert found["alias"] == found["web"], "a name that stands for another one"
    assert "not known" in found["nothing.default"]
    assert found["api"] == "default", "pods reach the API by its name, with a token of their own"
    assert found["name"] == "net-ask"
    assert found["own"] == [status["podIP"]]
    assert pods.pod("net-one")["spec"]["nodeName"] == "node-1", "its label was asked for"
    assert pods.pod("net-two")["spec"]["nodeName"] == "node-2", "one is on node-1, and node-3 has a taint"


SLICES = """
apiVersion: v1
kind: Service
metadata: {name: by-hand}
spec: {ports: [{port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand-1, labels: {kubernetes.io/service-name: by-hand}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS]}]
ports: [{name: "", port: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: net-slices}
spec: {restartPolicy: OnFailure, containers: [{name: c, image: none, command: [python3, -c,
  "import urllib.request as u; print(u.urlopen('http://by-hand:81', timeout=5).status)"]}]}
"""


def test_endpoints_that_somebody_wrote(pods: OneCluster) -> None:
    """A service without a selector, and slices for it, as Kubernetes asks for since Endpoints are deprecated."""
    pods.apply(SLICES.replace("ADDRESS", pods.ready("net-one")["podIP"]))
    pods.phase("net-slices", "Succeeded")
    assert pods.logs("net-slices") == "200\n"


def test_node_addresses(pods: OneCluster) -> None:
    nodes = pods.call(pods.client.list(NODES))["items"]
    addresses = {n["metadata"]["name"]: n["status"]["addresses"][0]["address"] for n in nodes}
    assert len(set(addresses.values())) == 3
    status = pods.phase("net-host", "Failed")
    assert status["podIP"] == status["hostIP"] == addresses[pods.pod("net-host")["spec"]["nodeName"]]
    text, node = pods.logs("net-host"), pods.pod("net-host")["spec"]["nodeName"]
    assert text.splitlines()[:2] == [node, node], "it is called as its node"
    assert text.splitlines()[2].split()[:2] == [status["hostIP"], node]
    assert status["hostIP"] in text, "it sees the network of its node"
    assert "No such file" in text, "it wanted no token, and has none"


def test_devices(pods: OneCluster) -> None:
    pods.phase("net-gpu", "Running")
    pods.until(lambda: pods.logs("net-gpu") == "0,1\n", "both devices of its node")
    pods.phase("net-npu", "Succeeded")
    assert pods.logs("net-npu") == "Ascend910-0,Ascend910-1 0,1\n"
    assert pods.pod("net-npu")["metadata"]["annotations"]["huawei.com/Ascend910"] == "Ascend910-0,Ascend910-1"
    text = pods.event("net-big", "0/3 nodes are available")
    assert text == (
        "FailedScheduling: 0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: gpu}, "
        "2 Insufficient nvidia.com/gpu."
    )
    condition = next(c for c in pods.status("net-big")["conditions"] if c["type"] == "PodScheduled")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")


def _get(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/hostname", timeout=20) as answer:
        answer.read()
        return int(answer.status)


@pytest.mark.skipif(not machine.use_kubectl(), reason=machine.NO_KUBECTL)
def test_kubectl_port_forward(pods: OneCluster) -> None:
    pods.ready("net-one")
    command = ["kubectl", "--kubeconfig", str(pods.state / "kubeconfig"), "port-forward", "net-one", ":8080", ":9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        assert forward.stdout is not None
        try:
            said = [forward.stdout.readline() for _ in range(4)]
            good, bad = (
                next(
                    int(line.split("127.0.0.1:")[1].split()[0]) for line in said if "127.0.0.1" in line and end in line
                )
                for end in ("-> 8080", "-> 9\n")
            )
            with ThreadPoolExecutor(8) as several:
                assert set(several.map(lambda _: _get(good), range(24))) == {200}
            with pytest.raises(OSError, match=r"reset|closed|without response|Remote end"):
                _get(bad)
            assert "error forwarding port 9 to pod default/net-one: Connection refused" in forward.stdout.read()
        finally:
            forward.kill()


def test_the_python_client_forwards_ports(pods: OneCluster) -> None:
    config = client.Configuration()
    load_kube_config(str(pods.state / "kubeconfig"), client_configuration=config)
    core = client.CoreV1Api(client.ApiClient(config))
    pods.ready("net-one")
    forward = portforward(core.connect_get_namespaced_pod_portforward, "net-one", "default", ports="8080,9")
    sock = forward.socket(8080)
    sock.settimeout(20)
    sock.sendall(b"GET /etc/hostname HTTP/1.0\r\n\r\n")
    whole = b"".join(iter(lambda: sock.recv(4096), b""))  # to the end, which comes when both connections are over
    assert whole.startswith(b"HTTP/1.0 200 OK")
    assert "Connection refused" in forward.error(9)


@pytest.mark.parametrize("typed", ["through\n", b"through\n"], ids=["text", "bytes"])
def test_the_python_client_types(pods: OneCluster, typed: str | bytes) -> None:
    config = client.Configuration()
    load_kube_config(str(pods.state / "kubeconfig"), client_configuration=config)
    core = client.CoreV1Api(client.ApiClient(config))
    pods.ready("net-one")
    words = {"command": ["head", "-n", "1"], "stdin": True, "stdout": True, "stderr": True, "tty": False}
    running = stream(core.connect_get_namespaced_pod_exec, "net-one", "default", **words, _preload_content=False)
    running.write_stdin(typed)
    running.run_forever(timeout=60)
    assert running.read_stdout() == "through\n"
    assert running.returncode == 0


@pytest.mark.skipif(not machine.use_kubectl(), reason=machine.NO_KUBECTL)
def test_kubectl_logs_and_exec(pods: OneCluster) -> None:
    def kubectl(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(pods.state / "kubeconfig"), *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    pods.ready("net-one")
    p = kubectl("exec", "net-one", "--", "sh", "-c", "hostname; echo $KUBERNETES_SERVICE_HOST; exit 7")
    assert (p.stdout, p.returncode) == ("one\n10.96.0.1\n", 7), p.stderr
    assert kubectl("exec", "-i", "net-one", "--", "cat", stdin="through\n").stdout == "through\n"
    long = "x" * 30_000  # commands travel in the URL
    assert kubectl("exec", "net-one", "--", "sh", "-c", f"echo {long} | wc -c").stdout == "30001\n"
    p = kubectl("exec", "net-one", "--", "no-such-program")
    assert p.returncode == 127, p.stderr
    script = "for i in 1 2 3; do echo line $i; sleep 0.05; done"
    pods.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: net-log}, spec: {restartPolicy: Never, containers: "
        f"[{{name: c, image: none, command: [sh, -c, '{script}']}}]}}}}"
    )
    pods.phase("net-log", "Running", "Succeeded")
    assert kubectl("logs", "-f", "net-log").stdout == "line 1\nline 2\nline 3\n"
    assert kubectl("logs", "net-log", "--tail", "1").stdout == "line 3\n"
    stamped = kubectl("logs", "net-log", "--timestamps", "--tail=1").stdout
    assert stamped.endswith("Z line 3\n")
    assert kubectl("logs", "net-log", "--since", "1h", "--limit-bytes", "5").stdout == "line "
    p = kubectl("logs", "net-log", "-p")
    assert "previous terminated container" in p.stderr
    words = ("run", "net-attached", "--attach", "--rm", "--quiet", "--restart=Never", "--image=none", "--command", "--")
    p = kubectl(*words, "sh", "-c", "echo seen; exit 5")
    assert p.returncode == 5, p.stderr
    assert "seen" in p.stdout


def test_no_two_clusters_of_a_machine_have_one_network(cluster: OneCluster, tmp_path: Path) -> None:
    """Where a second one chose the same, its pods were unheard, and those of the first were taken for them."""
    plan = plans.load(cluster.state)
    network = wiring.Wiring(plans.cluster_id(tmp_path), plan)
    try:
        with pytest.raises(wiring.Taken, match=f"{plans.cluster_id(cluster.state)}h"):
            network.build()
        other = up._connected(plan, tmp_path)
        assert other.octet != plan.octet
        assert plans.load(tmp_path) == other
        routes = json.loads(subprocess.check_output(["ip", "-json", "route", "show", "exact", other.cidr]))
        assert [route["dev"] for route in routes] == [f"{plans.cluster_id(tmp_path)}h"]
        assert up._connected(other, tmp_path) == other, "it can be repeated"
    finally:
        network.remove_all()
