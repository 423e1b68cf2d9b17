"""A real kube-apiserver to compare with: one that a kubeconfig names, or one started from KUBEBUILDER_ASSETS."""

from __future__ import annotations

import base64
import contextlib
import http.client
import secrets
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from apiserver import ApiProcess
from kernel import free_port
from replay import Server
from waiting import until

START_S = 60.0


def from_kubeconfig(path: Path) -> Server:
    """The current context: a CA, and a token or a client certificate."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
    tls = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    elif "certificate-authority-data" in cluster:
        tls.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    elif "certificate-authority" in cluster:
        tls.load_verify_locations(cafile=path.parent / cluster["certificate-authority"])
    if "client-certificate-data" in user:
        pair = path.with_suffix(".client.pem")
        pair.touch(mode=0o600)
        pair.write_bytes(
            base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"])
        )
        tls.load_cert_chain(pair)
        pair.unlink()
    elif "client-certificate" in user:
        tls.load_cert_chain(path.parent / user["client-certificate"], path.parent / user["client-key"])
    url = urlsplit(cluster["server"])
    return Server(url.hostname or "", url.port or 443, tls, user.get("token", ""), ours=False)


class Elsewhere(ApiProcess):
    """A server that runs already, for tests that ask one of ours."""

    ours = False

    def __init__(self, state: Path, kubeconfig: Path) -> None:
        super().__init__(state)
        self._server = from_kubeconfig(kubeconfig)
        self.port, self.context, self.token = self._server.port, self._server.context, self._server.token
        shutil.copy(kubeconfig, state / "kubeconfig")

    def connect(self, timeout: float = 30) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._server.host, self.port, timeout=timeout, context=self.context)


# What our server does itself; other controllers would change objects under the transcript's hands.
CONTROLLERS = (
    "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
)  # fmt: skip


@contextlib.contextmanager
def started(assets: Path, folder: Path) -> Iterator[Server]:
    """etcd and kube-apiserver on loopback, and kube-controller-manager if it is in that folder, too.

    Without one, steps that need controllers are left out.
    """
    token, key = secrets.token_hex(16), folder / "sa.key"
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60)
    client, peer, port = free_port(), free_port(), free_port()
    etcd = [
        str(assets / "etcd"), "--data-dir", str(folder / "etcd"),
        "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
    ]  # fmt: skip
    server = [
        str(assets / "kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{client}", "--bind-address", "127.0.0.1",
        "--secure-port", str(port), "--cert-dir", str(folder / "certs"), "--endpoint-reconciler-type", "none",
        "--token-auth-file", str(folder / "tokens.csv"),
        "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
        "--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
        "--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC",
    ]  # fmt: skip
    manager = assets / "kube-controller-manager"
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    found = Server("127.0.0.1", port, tls, token, ours=False, controllers=manager.exists(), alone=manager.exists())
    processes = []
    log = open(folder / "log", "wb")  # noqa: SIM115 - closed below
    try:
        for command in (etcd, server):
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        until(lambda: _ready(found), lambda: f"it is ready\n{(folder / 'log').read_text()[-2000:]}", START_S)
        if found.controllers:
            command = [
                str(manager), "--kubeconfig", str(_kubeconfig(folder, port, token)), "--secure-port", "0",
                "--leader-elect=false", "--service-account-private-key-file", str(key),
                "--root-ca-file", str(folder / "certs" / "apiserver.crt"), "--controllers", ",".join(CONTROLLERS),
            ]  # fmt: skip
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        log.close()


def _ready(server: Server) -> bool:
    try:
        return server.ask("GET", "/readyz", None, {})[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _kubeconfig(folder: Path, port: int, token: str) -> Path:
    config = {
        "clusters": [
            {"name": "real", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        "current-context": "real",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file
