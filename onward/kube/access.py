"""Where the API is and how to be let in: a kubeconfig, or the files that a pod finds in a cluster."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onward.errors import OnwardError

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_S = 60.0  # a login plugin may ask a person


def local_state() -> Path:
    """Where the one-machine cluster of this user lives when nothing else is said."""
    if os.environ.get("ONWARD_STATE"):
        return Path(os.environ["ONWARD_STATE"])
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(home) / "onward" / "cluster"


class AccessError(OnwardError):
    """There is no way in: no kubeconfig, or one that cannot be used."""


class Login:
    """A login plugin (client.authentication.k8s.io). What it says is good until the server will not have it any more:
    then it is asked again.
    """

    def __init__(self, spec: dict[str, Any], source: str) -> None:
        self._spec, self._source = spec, source
        self.status = _plugin(spec, source)

    @property
    def token(self) -> str:
        return str(self.status.get("token") or "")

    def renew(self) -> None:
        self.status = _plugin(self._spec, self._source)


@dataclass(frozen=True)
class Access:
    """All that a client needs to know about a cluster."""

    server: str
    namespace: str = "default"
    token: str = ""
    login: Login | None = None  # where a token comes from that does not last
    token_file: Path | None = None  # read for each request: tokens are renewed in place
    ca_pem: str = ""
    certificate: tuple[str, str] | None = None  # PEM texts: certificate, key
    insecure: bool = False
    server_name: str | None = None
    source: str = ""

    def bearer(self) -> str:
        if self.token_file is not None:
            try:
                return self.token_file.read_text().strip()
            except OSError as e:
                raise AccessError(f"cannot read the token in {self.token_file}: {e.strerror}") from e
        return (self.login.token if self.login is not None else "") or self.token

    def tls(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        context = ssl.create_default_context(cadata=self.ca_pem or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            with tempfile.TemporaryDirectory() as place:  # ssl reads them from files only
                files = [Path(place) / "cert", Path(place) / "key"]
                for file, text in zip(files, self.certificate, strict=True):
                    file.touch(mode=0o600)
                    file.write_text(text)
                context.load_cert_chain(*map(str, files))
        return context


def load_access(kubeconfig: str | Path | None = None, context: str | None = None) -> Access:
    """The given file, else KUBECONFIG, else ~/.kube/config, else the one of the pod we run in."""
    if kubeconfig is not None:
        return _from_file([Path(kubeconfig)], context)
    if os.environ.get("KUBECONFIG"):
        return _from_file([Path(p) for p in os.environ["KUBECONFIG"].split(os.pathsep) if p], context)
    if (IN_CLUSTER / "token").exists() and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster()
    home = Path.home() / ".kube" / "config"
    if home.exists():
        return _from_file([home], context)
    raise AccessError("no cluster: KUBECONFIG is not set and ~/.kube/config does not exist; onward up starts one here")


def _in_cluster() -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(IN_CLUSTER / "namespace").read_text().strip(),
        token_file=IN_CLUSTER / "token",
        ca_pem=(IN_CLUSTER / "ca.crt").read_text(),
        source=str(IN_CLUSTER),
    )


def _from_file(paths: list[Path], wanted: str | None) -> Access:
    merged: dict[str, dict[str, Any]] = {"clusters": {}, "users": {}, "contexts": {}}
    current, source = wanted or "", ""
    for path in paths:
        if not path.exists() and len(paths) > 1:
            continue
        for section, name, value in _entries(path):
            if section == "current-context":
                current = current or name
            elif name not in merged[section]:  # the first file that says it wins, as in kubectl
                merged[section][name] = {**value, "_dir": path.parent}
        source = source or str(path)
    if current not in merged["contexts"]:
        known = ", ".join(merged["contexts"]) or "none"
        raise AccessError(f"{source}: context {current!r} does not exist (contexts: {known}); set current-context")
    chosen = merged["contexts"][current]
    cluster = merged["clusters"].get(chosen.get("cluster", ""))
    if cluster is None or not cluster.get("server"):
        raise AccessError(f"{source}: context {current!r} names cluster {chosen.get('cluster')!r}, which has no server")
    user = merged["users"].get(chosen.get("user", ""), {})
    return _access(cluster, user, str(chosen.get("namespace") or "default"), source)


def _entries(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as e:
        raise AccessError(f"cannot read kubeconfig {path}: {e}") from e
    if not isinstance(data, dict):
        raise AccessError(f"kubeconfig {path} is not a mapping")
    found: list[tuple[str, str, dict[str, Any]]] = []
    for section, inner in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
        found += [(section, str(e.get("name", "")), e.get(inner) or {}) for e in data.get(section) or []]
    if data.get("current-context"):
        found.append(("current-context", str(data["current-context"]), {}))
    return found


def _access(cluster: dict[str, Any], user: dict[str, Any], namespace: str, source: str) -> Access:
    token, certificate = str(user.get("token") or ""), None
    cert, key = _text(user, "client-certificate", source), _text(user, "client-key", source)
    login = Login(user["exec"], source) if user.get("exec") else None
    if login is not None:
        cert = login.status.get("clientCertificateData") or cert
        key = login.status.get("clientKeyData") or key
    if cert and key:
        certificate = (cert, key)
    file = user.get("tokenFile")
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        namespace=namespace,
        token=token,
        login=login,
        token_file=Path(user["_dir"], file) if file else None,
        ca_pem=_text(cluster, "certificate-authority", source),
        certificate=certificate,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name"),
        source=source,
    )


def _text(entry: dict[str, Any], name: str, source: str) -> str:
    """`name-data` in base64, or the file called `name`."""
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"]).decode()
    if entry.get(name):
        path = Path(entry["_dir"], entry[name])
        try:
            return path.read_text()
        except OSError as e:
            raise AccessError(f"{source}: cannot read {name} {path}: {e.strerror}") from e
    return ""


def _plugin(spec: dict[str, Any], source: str) -> dict[str, Any]:
    """What it says."""
    command = [spec.get("command", ""), *(spec.get("args") or [])]
    version = spec.get("apiVersion", "client.authentication.k8s.io/v1")
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, **{e["name"]: e["value"] for e in spec.get("env") or []}}
    env["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    try:
        p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PLUGIN_S, check=True)
        status = json.loads(p.stdout)["status"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
        hint = f"; {spec['installHint']}" if spec.get("installHint") else ""
        raise AccessError(f"{source}: the login plugin {command[0]!r} failed: {e}{hint}") from e
    return status if isinstance(status, dict) else {}
