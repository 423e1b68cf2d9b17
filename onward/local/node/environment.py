"""The environment of a container: what the pod's author wrote, with the kubelet's rules.

`$(NAME)` stands for a variable defined before; `$$` is one dollar; what cannot be resolved is left as it stands.
"""

from __future__ import annotations

import base64
import os
import pwd
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from onward.core import quantity
from onward.kube.objects import Obj

_REFERENCE = re.compile(r"\$(\$|\([^()]*\))")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_KEYED = re.compile(r"metadata\.(annotations|labels)\['([^']*)'\]")
INHERITED = ("HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")

TERM = "xterm"  # of whoever has a terminal, as container runtimes say it

Lookup = Callable[[str, str], Obj | None]  # kind ("ConfigMap" or "Secret"), name -> object


class ConfigError(Exception):
    """Something that the environment refers to does not exist: CreateContainerConfigError."""


def expand(text: str, known: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        inner = match.group(1)
        if inner == "$":
            return "$"
        return known.get(inner[1:-1], match.group(0))

    return _REFERENCE.sub(replace, text)


def base() -> dict[str, str]:
    """What the image would give: this machine's PATH, with the running environment's python, pip and torchrun first."""
    own = str(Path(sys.executable).parent)
    path = [own, *(p for p in os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":") if p != own)]
    return {"PATH": ":".join(path), **{name: os.environ[name] for name in INHERITED if name in os.environ}}


def home_of(uid: int) -> dict[str, str]:
    """HOME and USER of somebody, as this machine knows them; the home of one whom it does not know is /."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return {"HOME": "/"}
    return {"HOME": found.pw_dir, "USER": found.pw_name}


def build(
    pod: Obj, container: Obj, services: Mapping[str, str], facts: Mapping[str, str], lookup: Lookup
) -> dict[str, str]:
    """Service variables, then envFrom, then env. `facts`: hostIP, podIP, and what the node allocates."""
    result = dict(services)
    for source in container.get("envFrom") or []:
        result |= _env_from(source, lookup)
    for entry in container.get("env") or []:
        name = entry["name"]
        if entry.get("valueFrom"):
            value = value_from(entry["valueFrom"], pod, container, facts, lookup)
            if value is None:
                continue
            result[name] = value
        else:
            result[name] = expand(str(entry.get("value") or ""), result)
    return result


def _env_from(source: Obj, lookup: Lookup) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if source.get(field) is not None:
            found = _referred(kind, source[field], lookup)
            values = texts(found) if found is not None else {}
            return {prefix + k: v for k, v in values.items() if _NAME.fullmatch(prefix + k)}
    return {}


def _referred(kind: str, ref: Obj, lookup: Lookup) -> Obj | None:
    """The object that is meant. None: it is optional, and not there."""
    found = lookup(kind, ref.get("name", ""))
    if found is None and not ref.get("optional"):
        raise ConfigError(f'{kind.lower()} "{ref.get("name")}" not found')
    return found


def texts(obj: Obj) -> dict[str, str]:
    """The data of a ConfigMap or Secret as text."""
    if obj.get("kind") == "Secret":
        return {k: base64.b64decode(v or "").decode(errors="replace") for k, v in (obj.get("data") or {}).items()}
    return {k: str(v) for k, v in (obj.get("data") or {}).items()}


def value_from(source: Obj, pod: Obj, container: Obj, facts: Mapping[str, str], lookup: Lookup) -> str | None:
    """None: it is optional, and not there."""
    if "fieldRef" in source:
        return field(source["fieldRef"].get("fieldPath", ""), pod, facts)
    if "resourceFieldRef" in source:
        return resource_field(source["resourceFieldRef"], pod, container, facts)
    for name, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        ref = source.get(name)
        if ref is None:
            continue
        found = _referred(kind, ref, lookup)
        if found is None:
            return None
        values = texts(found)
        if ref.get("key") not in values:
            if ref.get("optional"):
                return None
            where = f"{found['metadata'].get('namespace', '')}/{ref.get('name')}"
            raise ConfigError(f"couldn't find key {ref.get('key')} in {kind} {where}")
        return values[ref["key"]]
    raise ConfigError(f"valueFrom {', '.join(source) or '{}'} is not known here")


def field(path: str, pod: Obj, facts: Mapping[str, str]) -> str:
    """A field of the pod, as the downward API offers it."""
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    if path in ("metadata.labels", "metadata.annotations"):
        found = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{k}="{_escape(str(v))}"' for k, v in sorted(found.items()))
    simple = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": facts.get("hostIP", ""),
        "status.hostIPs": facts.get("hostIP", ""),
        "status.podIP": facts.get("podIP", ""),
        "status.podIPs": facts.get("podIP", ""),
    }
    if path not in simple:
        raise ConfigError(f"fieldPath {path!r} is not offered by the downward API")
    return str(simple[path] or "")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_field(ref: Obj, pod: Obj, container: Obj, facts: Mapping[str, str]) -> str:
    """`limits.cpu` and the like, in units of the divisor; a limit that is not set is what the node has."""
    if ref.get("containerName"):
        every = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
        container = next((c for c in every if c["name"] == ref["containerName"]), container)
    kind, _, name = str(ref.get("resource", "")).partition(".")
    resources = container.get("resources") or {}
    value = (resources.get(kind) or {}).get(name)
    if value is None and kind == "limits":
        value = facts.get(f"allocatable.{name}", "0")
    divisor = quantity.parse(ref.get("divisor") or "1") or 1
    answer = quantity.parse(value or 0) / divisor
    return str(-int(-answer // 1) if answer % 1 else int(answer))


def service_variables(namespace: str, services: list[Obj], links: bool) -> dict[str, str]:
    """What a pod is told of services: those of its namespace (if it wants) and where the API is."""
    found: dict[str, str] = {}
    for service in services:
        metadata, spec = service["metadata"], service.get("spec") or {}
        api = metadata["namespace"] == "default" and metadata["name"] == "kubernetes"
        address = spec.get("clusterIP")
        if not api and not (links and metadata["namespace"] == namespace):
            continue
        if not address or address == "None" or not spec.get("ports"):
            continue
        found |= _one_service(metadata["name"].upper().replace("-", "_"), address, spec["ports"])
    return found


def _one_service(name: str, address: str, ports: list[Obj]) -> dict[str, str]:
    first = ports[0]
    found = {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(first["port"])}
    url = f"{(first.get('protocol') or 'TCP').lower()}://{address}:{first['port']}"
    found[f"{name}_PORT"] = url
    for port in ports:
        protocol = (port.get("protocol") or "TCP").lower()
        if port.get("name"):
            found[f"{name}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["port"])
        stem = f"{name}_PORT_{port['port']}_{protocol.upper()}"
        found[stem] = f"{protocol}://{address}:{port['port']}"
        found |= {f"{stem}_PROTO": protocol, f"{stem}_PORT": str(port["port"]), f"{stem}_ADDR": address}
    return found
