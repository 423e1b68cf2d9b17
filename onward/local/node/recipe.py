"""A recipe: everything a shim needs to know to run a pod, worked out once. No object of the API is looked at after."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.core import quantity
from onward.kube.objects import Obj
from onward.local.node import devices, environment, volumes
from onward.local.node.environment import Lookup
from onward.local.node.references import TokenRequest
from onward.local.plan import DNS_ADDRESS, DOMAIN
from onward.local.shim import linux

NO_HOST_PORT = "hostPort {} is not opened at the node's address; reach the pod at its own, or give it hostNetwork"
GIVE_UP_GRPC = "grpc probes are not supported on one machine; the container counts as healthy"


class CreateError(Exception):
    """A container cannot be created: (container, reason, message)."""

    def __init__(self, container: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.container, self.reason, self.message = container, reason, message


@dataclass
class Inputs:
    """What a pod's containers are made of, besides the pod."""

    pod: Obj
    place: Path
    cluster: str
    network: str
    netns: str
    cgroup: list[str]
    cgroup_version: int
    facts: Mapping[str, str]
    services: Mapping[str, str]
    devices: Mapping[str, dict[str, list[int]]]
    node_devices: Mapping[str, int]
    lookup: Lookup
    nfs: dict[str, str]
    host_paths: dict[str, str]
    tokens: Mapping[TokenRequest, str]
    ca: str
    started_at: float
    backoff_s: tuple[float, float]


def build(inputs: Inputs) -> tuple[Obj, list[str]]:
    """The recipe, and notes for people."""
    pod, spec = inputs.pod, inputs.pod["spec"]
    notes: list[str] = []
    setting = volume_setting(inputs)
    sources = volumes.prepare(setting)
    etc = _etc(inputs) if linux.may_mount() else []
    containers = []
    for init, given in ((True, spec.get("initContainers")), (False, spec["containers"])):
        containers += [_container(inputs, c, init, sources, etc, notes) for c in given or []]
    metadata, together = pod["metadata"], (spec.get("resources") or {}).get("limits") or {}
    recipe = {
        "uid": metadata["uid"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "hostname": hostname(pod),
        "netns": inputs.netns,
        "address": inputs.facts.get("podIP", ""),
        "cgroup": inputs.cgroup,
        "cgroup_version": inputs.cgroup_version,
        "restart_policy": spec.get("restartPolicy") or "Always",
        "memory_bytes": quantity.whole(together.get("memory", 0)),
        "cpu_millis": quantity.millis(together.get("cpu", 0)),
        "grace_s": spec.get("terminationGracePeriodSeconds", 30),
        "deadline_s": spec.get("activeDeadlineSeconds"),
        "started_at": inputs.started_at,
        "backoff_s": list(inputs.backoff_s),
        "containers": containers,
    }
    return recipe, notes


def volume_setting(inputs: Inputs) -> volumes.Setting:
    return volumes.Setting(
        pod=inputs.pod,
        place=inputs.place,
        cluster=inputs.cluster,
        nfs=inputs.nfs,
        host_paths=inputs.host_paths,
        facts=inputs.facts,
        lookup=inputs.lookup,
        tokens=inputs.tokens,
        ca=inputs.ca,
    )


def hostname(pod: Obj) -> str:
    """What the pod is called, by itself."""
    spec = pod["spec"]
    if spec.get("hostNetwork"):  # it is on its node
        return str(spec["nodeName"])
    if spec.get("setHostnameAsFQDN") and domain(pod):
        return f"{_short_name(pod)}.{domain(pod)}"
    return _short_name(pod)


def _short_name(pod: Obj) -> str:
    spec = pod["spec"]
    if spec.get("hostnameOverride"):
        return str(spec["hostnameOverride"])
    return str(spec.get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def domain(pod: Obj) -> str:
    """Of its headless service; empty where it has none."""
    spec = pod["spec"]
    if not spec.get("subdomain") or spec.get("hostnameOverride"):
        return ""
    return f"{spec['subdomain']}.{pod['metadata']['namespace']}.svc.{DOMAIN}"


def _container(inputs: Inputs, c: Obj, init: bool, sources: Mapping[str, str], etc: list[Obj], notes: list[str]) -> Obj:
    pod, name = inputs.pod, c["name"]
    if not c.get("command"):
        raise CreateError(
            name,
            "CreateContainerError",
            f"container {name} has no command, and images are not pulled here, so the entrypoint of {c.get('image')!r} "
            f"is not known; write the command into the pod",
        )
    user = _user(pod, c, notes)
    env = _environment(inputs, c, user.get("uid"))
    try:
        mounts = volumes.mounts(c, sources, env, volumes.fixed(pod))
    except volumes.MountError as e:
        raise CreateError(name, "CreateContainerConfigError", str(e)) from e
    if mounts and not linux.may_mount():
        mounts = _without_root(mounts, name)
    message_file = ""
    if linux.may_mount():
        mounts = [m for m in etc if m["target"] not in {n["target"] for n in mounts}] + mounts
        message_file = str(inputs.place / f"termination-{name}")
        Path(message_file).touch()
        target = os.path.realpath(c.get("terminationMessagePath") or "/dev/termination-log")
        mounts.append({"source": message_file, "target": target, "readonly": False})
    if not pod["spec"].get("hostNetwork"):
        closed = [str(port["hostPort"]) for port in c.get("ports") or [] if port.get("hostPort")]
        notes += [f"container {name}: {NO_HOST_PORT.format(', '.join(closed))}"] if closed else []
    limits = (c.get("resources") or {}).get("limits") or {}
    found = {
        "name": name,
        "init": init,
        "sidecar": init and c.get("restartPolicy") == "Always",
        "restart_policy": c.get("restartPolicy") or pod["spec"].get("restartPolicy") or "Always",
        "restart_rules": [r["exitCodes"] for r in c.get("restartPolicyRules") or [] if r.get("exitCodes")],
        "argv": [environment.expand(str(word), env) for word in [*c["command"], *(c.get("args") or [])]],
        "env": env,
        "cwd": c.get("workingDir") or "/",
        "stdin": bool(c.get("stdin")),
        "stdin_once": bool(c.get("stdinOnce")),
        "tty": bool(c.get("tty")),
        "mounts": mounts,
        "message_file": message_file,
        "message_from_log": c.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        "memory_bytes": quantity.whole(limits.get("memory", 0)),
        "cpu_millis": quantity.millis(limits.get("cpu", 0)),
        "stop_signal": _stop_signal(c),
        "hooks": _hooks(c),
        "probes": _probes(c, notes),
        **user,
    }
    return found


def _without_root(mounts: list[Obj], name: str) -> list[Obj]:
    """A path that already shows the volume needs no mount; anything else needs root."""
    needed = [m for m in mounts if os.path.realpath(m["source"]) != os.path.realpath(m["target"])]
    needed = [m for m in needed if not m["target"].startswith(os.path.realpath("/var/run/secrets/kubernetes.io"))]
    if needed:
        paths = ", ".join(m["target"] for m in needed)
        raise volumes.MountError(
            f"container {name}: {paths} cannot be mounted, because onward up may not mount (it is not root, or in a "
            f"container that forbids it); start it as root, or use a hostPath at its own path"
        )
    return []


def _environment(inputs: Inputs, c: Obj, uid: int | None) -> dict[str, str]:
    pod, name = inputs.pod, c["name"]
    own = environment.base()
    if uid is not None:
        own.pop("USER", None)
        own |= environment.home_of(uid)
    if c.get("tty"):
        own["TERM"] = environment.TERM
    own["HOSTNAME"] = hostname(pod)
    if any(r.startswith("nvidia.com/") for r in inputs.node_devices):
        own |= {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    own |= devices.variables(inputs.devices.get(name) or {})
    try:
        own |= environment.build(pod, c, inputs.services, inputs.facts, inputs.lookup)
    except environment.ConfigError as e:
        raise CreateError(name, "CreateContainerConfigError", str(e)) from e
    own["ONWARD_CONTAINER"] = f"{pod['metadata']['uid']}/{name}"  # how its processes are found, whatever happens
    return own


def _probes(c: Obj, notes: list[str]) -> Obj:
    found = {}
    for kind in ("startup", "liveness", "readiness"):
        probe = c.get(f"{kind}Probe")
        if not probe:
            continue
        if "grpc" in probe:
            notes.append(f"container {c['name']}: {GIVE_UP_GRPC}")
            continue
        found[kind] = _numbered(c, probe)
    return found


def _hooks(c: Obj) -> Obj:
    given = c.get("lifecycle") or {}
    return {name: _numbered(c, given[name]) for name in ("postStart", "preStop") if given.get(name)}


def _stop_signal(c: Obj) -> int:
    name = str((c.get("lifecycle") or {}).get("stopSignal") or "SIGTERM")
    return int(getattr(signal, name, signal.SIGTERM))


def _numbered(c: Obj, action: Obj) -> Obj:
    """A probe or hook; a port that it names is a number."""
    ports = {p.get("name"): p["containerPort"] for p in c.get("ports") or []}
    found = dict(action)
    for kind in ("httpGet", "tcpSocket"):
        if kind in found:
            port = found[kind].get("port")
            found[kind] = {**found[kind], "port": ports.get(port, port)}
    return found


def _user(pod: Obj, c: Obj, notes: list[str]) -> dict[str, Any]:
    of_pod, own = pod["spec"].get("securityContext") or {}, c.get("securityContext") or {}
    uid = own.get("runAsUser", of_pod.get("runAsUser"))
    gid = own.get("runAsGroup", of_pod.get("runAsGroup"))
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) and (uid == 0 or (uid is None and os.geteuid() == 0)):
        raise CreateError(
            c["name"], "CreateContainerConfigError", "container has runAsNonRoot and would run as root; set runAsUser"
        )
    if os.geteuid() != 0:
        if uid not in (None, os.geteuid()):
            notes.append(f"container {c['name']} runs as user {os.geteuid()}, who is not root and cannot become {uid}")
        return {}
    groups = [*(of_pod.get("supplementalGroups") or []), *([of_pod["fsGroup"]] if "fsGroup" in of_pod else [])]
    if uid is None and gid is None and not groups:
        return {}
    return {"uid": uid, "gid": gid if gid is not None else 0, "groups": groups}


def _etc(inputs: Inputs) -> list[Obj]:
    """/etc/hosts and /etc/resolv.conf, where the pod has a network of its own."""
    if inputs.network != "pods":
        return []
    place, found = inputs.place / "etc", []
    place.mkdir(exist_ok=True)
    texts = {"hosts": _hosts(inputs), "resolv.conf": resolv_conf(inputs.pod)}
    for name, text in texts.items():
        if text is None:
            continue
        (place / name).write_text(text)
        found.append({"source": str(place / name), "target": os.path.realpath(f"/etc/{name}"), "readonly": False})
    return found


def _hosts(inputs: Inputs) -> str:
    pod = inputs.pod
    lines = ["# written by onward for this pod", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    name = hostname(pod) if pod["spec"].get("hostNetwork") else _short_name(pod)
    names = [f"{name}.{domain(pod)}", name] if domain(pod) else [name]
    lines.append(f"{inputs.facts.get('podIP', '127.0.0.1')}\t{' '.join(names)}")
    for alias in pod["spec"].get("hostAliases") or []:
        lines.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames') or [])}")
    return "\n".join(lines) + "\n"


def resolv_conf(pod: Obj) -> str | None:
    """None: this machine's own."""
    spec = pod["spec"]
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if policy == "Default" or (policy == "ClusterFirst" and spec.get("hostNetwork")):
        return None
    config = spec.get("dnsConfig") or {}
    servers, searches, options = [], [], []
    if policy != "None":
        servers = [DNS_ADDRESS]
        searches = [f"{pod['metadata']['namespace']}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN]
        options = ["ndots:5"]
    servers += config.get("nameservers") or []
    searches += config.get("searches") or []
    for option in config.get("options") or []:
        word = option["name"] + (f":{option['value']}" if option.get("value") else "")
        options = [o for o in options if o.partition(":")[0] != option["name"]] + [word]
    lines = [f"nameserver {s}" for s in servers]
    lines += [f"search {' '.join(searches)}"] if searches else []
    lines += [f"options {' '.join(options)}"] if options else []
    return "\n".join(lines) + "\n"


def words(argv: list[str]) -> str:
    return shlex.join(argv)
