"""Volumes: what a pod's volumes are on this machine, and where its containers see them.

Files of ConfigMaps, Secrets and the downward API are written as the kubelet writes them: into a directory of their own
that a link called `..data` points to, so that a change of all files is one rename, and running pods see it.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onward.core import quantity
from onward.kube.objects import Obj
from onward.local.node import environment
from onward.local.node.environment import Lookup
from onward.local.node.references import TokenRequest, token_request
from onward.local.shim import linux

FILES = ("configMap", "secret", "downwardAPI", "projected")
SHARED_MEMORY = Path("/dev/shm")


class MountError(Exception):
    """A volume cannot be set up: FailedMount. It is tried again."""


@dataclass
class Setting:
    """What volumes need to know besides the pod."""

    pod: Obj
    place: Path
    cluster: str
    nfs: dict[str, str]
    host_paths: dict[str, str]
    facts: Mapping[str, str]
    lookup: Lookup
    tokens: Mapping[TokenRequest, str]
    ca: str = ""


def prepare(setting: Setting) -> dict[str, str]:
    """Volume name -> directory or file on this machine. Can be repeated; files are brought up to date."""
    return {v["name"]: _source(setting, v) for v in setting.pod["spec"].get("volumes") or []}


def refresh(setting: Setting) -> None:
    """Bring files of ConfigMaps, Secrets and the downward API up to date in a running pod."""
    for volume in setting.pod["spec"].get("volumes") or []:
        if any(kind in volume for kind in FILES):
            try:
                _source(setting, volume)
            except MountError:
                continue  # what was there stays, as with the kubelet


def _source(setting: Setting, volume: Obj) -> str:
    name = volume["name"]
    own = setting.place / "volumes" / name
    if any(kind in volume for kind in FILES):
        own.mkdir(parents=True, exist_ok=True)
        user, group = owners(setting.pod)
        try:
            files = _files(setting, volume)
        except MountError as e:
            raise MountError(f'MountVolume.SetUp failed for volume "{name}" : {e}') from e
        if group is not None:
            files = {path: (content, mode | 0o440) for path, (content, mode) in files.items()}
        write_files(own, files, user, group)
        return str(own)
    if "emptyDir" in volume:
        return _empty_dir(setting, name, volume["emptyDir"] or {}, own)
    if "hostPath" in volume:
        return _host_path(setting.host_paths, name, volume["hostPath"])
    if "nfs" in volume:
        return _nfs(setting.nfs, name, volume["nfs"])
    kind = next((k for k in volume if k != "name"), "nothing")
    if kind == "persistentVolumeClaim":
        raise MountError(
            f'volume "{name}": persistent volume claims are not provided on one machine; use hostPath, emptyDir or nfs'
        )
    raise MountError(f'volume "{name}": {kind} volumes are not provided on one machine; use hostPath, emptyDir or nfs')


def fixed(pod: Obj) -> set[str]:
    """Volumes that containers cannot write to, whatever their mounts say."""
    found = set()
    for volume in pod["spec"].get("volumes") or []:
        if any(kind in volume for kind in FILES) or (volume.get("nfs") or {}).get("readOnly"):
            found.add(volume["name"])
    return found


def owners(pod: Obj) -> tuple[int | None, int | None]:
    """User and group that files are given to: the one user all containers run as, and `fsGroup`."""
    if os.geteuid() != 0:
        return None, None
    spec = pod["spec"]
    of_pod = spec.get("securityContext") or {}
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    users = {(c.get("securityContext") or {}).get("runAsUser", of_pod.get("runAsUser")) for c in every}
    return users.pop() if len(users) == 1 else None, of_pod.get("fsGroup")


def memory_place(cluster: str, uid: str) -> Path:
    return SHARED_MEMORY / f"{cluster}-{uid}"


def _empty_dir(setting: Setting, name: str, spec: Obj, own: Path) -> str:
    if spec.get("medium") == "Memory":
        own = memory_place(setting.cluster, setting.pod["metadata"]["uid"]) / name
    own.mkdir(parents=True, exist_ok=True)
    own.chmod(0o777)
    if spec.get("medium") == "Memory" and linux.may_mount() and not os.path.ismount(own):
        size = f",size={quantity.whole(spec['sizeLimit'])}" if spec.get("sizeLimit") else ""
        linux.mount("onward", str(own), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777{size}")
    _, group = owners(setting.pod)
    if group is not None:
        os.chown(own, -1, group)
        own.chmod(0o2777)
    return str(own)


def _host_path(maps: dict[str, str], name: str, spec: Obj) -> str:
    asked, kind = spec.get("path", ""), spec.get("type") or ""
    path = _mapped(maps, os.path.normpath(asked)) or asked
    if kind == "DirectoryOrCreate":
        os.makedirs(path, 0o755, exist_ok=True)
    elif kind == "FileOrCreate" and not os.path.exists(path):
        try:
            Path(path).touch(0o644)
        except OSError as e:
            raise MountError(f'volume "{name}": {path}: {e.strerror}') from e
    try:
        mode = os.stat(path).st_mode
    except OSError as e:
        raise MountError(
            f'MountVolume.SetUp failed for volume "{name}" : hostPath {path} does not exist on this machine '
            f"({e.strerror}); make it, or set type: DirectoryOrCreate"
        ) from e
    checks = {
        "Directory": stat.S_ISDIR,
        "DirectoryOrCreate": stat.S_ISDIR,
        "File": stat.S_ISREG,
        "FileOrCreate": stat.S_ISREG,
        "Socket": stat.S_ISSOCK,
        "CharDevice": stat.S_ISCHR,
        "BlockDevice": stat.S_ISBLK,
    }
    if kind and kind not in checks:
        raise MountError(f'volume "{name}": hostPath type {kind!r} is not known')
    if kind and not checks[kind](mode):
        raise MountError(
            f'MountVolume.SetUp failed for volume "{name}" : hostPath type check failed: {path} is not a {kind}'
        )
    return str(os.path.realpath(path))


def _mapped(maps: dict[str, str], asked: str) -> str | None:
    """The longest mapped path above it counts."""
    for given in sorted(maps, key=len, reverse=True):
        head = given.rstrip("/")
        if asked == head or asked.startswith(head + "/"):
            return os.path.normpath(maps[given] + asked[len(head) :])
    return None


def _nfs(maps: dict[str, str], name: str, spec: Obj) -> str:
    asked = f"{spec.get('server')}:{os.path.normpath(spec.get('path') or '/')}"
    path = _mapped(maps, asked)
    if path:
        if not os.path.isdir(path):
            raise MountError(f'volume "{name}": {asked} is mapped to {path}, which does not exist; make that directory')
        return path
    raise MountError(
        f'MountVolume.SetUp failed for volume "{name}" : nothing is mounted over NFS on one machine; '
        f"map it to a directory: onward up --nfs {asked}=DIR"
    )


# Files


def _files(setting: Setting, volume: Obj) -> dict[str, tuple[bytes, int]]:
    """Path in the volume -> content, mode."""
    if "configMap" in volume:
        return _from_object(setting, "ConfigMap", volume["configMap"], volume["configMap"].get("name", ""))
    if "secret" in volume:
        return _from_object(setting, "Secret", volume["secret"], volume["secret"].get("secretName", ""))
    if "downwardAPI" in volume:
        return _downward(setting, volume["downwardAPI"])
    whole: dict[str, tuple[bytes, int]] = {}
    projected = volume["projected"]
    mode = int(projected.get("defaultMode", 0o644))
    for source in projected.get("sources") or []:
        for kind, spec in source.items():
            given = {"defaultMode": mode, **(spec or {})}
            if kind in ("configMap", "secret"):
                whole |= _from_object(setting, "ConfigMap" if kind == "configMap" else "Secret", given, given["name"])
            elif kind == "downwardAPI":
                whole |= _downward(setting, given)
            elif kind == "serviceAccountToken":
                token = setting.tokens.get(token_request(given), "")
                private = any(each is not None for each in owners(setting.pod))
                whole[given["path"]] = (token.encode(), 0o600 if private else mode)
            else:
                raise MountError(f"projected {kind} is not provided on one machine")
    return whole


def _from_object(setting: Setting, kind: str, spec: Obj, name: str) -> dict[str, tuple[bytes, int]]:
    found = setting.lookup(kind, name)
    if found is None:
        if kind == "ConfigMap" and name == "kube-root-ca.crt" and setting.ca:
            found = {"kind": kind, "data": {"ca.crt": setting.ca}}
        elif spec.get("optional"):
            return {}
        else:
            raise MountError(f'{kind.lower()} "{name}" not found')
    data: dict[str, bytes]
    if kind == "Secret":
        data = {k: base64.b64decode(v or "") for k, v in (found.get("data") or {}).items()}
    else:
        data = {k: str(v).encode() for k, v in (found.get("data") or {}).items()}
        data |= {k: base64.b64decode(v) for k, v in (found.get("binaryData") or {}).items()}
    mode = int(spec.get("defaultMode") or 0o644)
    if not spec.get("items"):
        return {key: (value, mode) for key, value in data.items()}
    chosen = {}
    for item in spec["items"]:
        if item["key"] not in data:
            if spec.get("optional"):
                continue
            raise MountError(f"{kind.lower()} references non-existent key: {item['key']}")
        chosen[item["path"]] = (data[item["key"]], int(item.get("mode") or mode))
    return chosen


def _downward(setting: Setting, spec: Obj) -> dict[str, tuple[bytes, int]]:
    found = {}
    mode = int(spec.get("defaultMode") or 0o644)
    containers = setting.pod["spec"]["containers"]
    for item in spec.get("items") or []:
        source = {k: item[k] for k in ("fieldRef", "resourceFieldRef") if k in item}
        try:
            text = environment.value_from(source, setting.pod, containers[0], setting.facts, setting.lookup)
        except environment.ConfigError as e:
            raise MountError(str(e)) from e
        found[item["path"]] = ((text or "").encode(), int(item.get("mode") or mode))
    return found


def write_files(
    place: Path, files: dict[str, tuple[bytes, int]], user: int | None = None, group: int | None = None
) -> None:
    """All at once: a reader sees the old files or the new ones."""
    current = place / "..data"
    if current.exists() and _read(current) == files:
        return
    new = place / f"..{time.time_ns()}"
    for path, (content, mode) in files.items():
        file = new / path
        if ".." in Path(path).parts or Path(path).is_absolute():
            raise MountError(f"the path {path!r} leaves its volume")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if user is not None or group is not None:
            os.chown(file, -1 if user is None else user, -1 if group is None else group)
        file.chmod(mode)
    new.mkdir(exist_ok=True)
    old = os.readlink(current) if current.is_symlink() else None
    (place / "..data.new").symlink_to(new.name)
    (place / "..data.new").rename(current)
    tops = {Path(path).parts[0] for path in files}
    for top in tops:
        if not os.path.lexists(place / top):
            (place / top).symlink_to(f"..data/{top}")
    for entry in place.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()  # all else is what a subPath needed that names no file of ours
    if old:
        shutil.rmtree(place / old, ignore_errors=True)


def _read(place: Path) -> dict[str, tuple[bytes, int]]:
    found = {}
    for file in place.rglob("*"):
        if file.is_file():
            found[str(file.relative_to(place))] = (file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
    return found


def mounts(container: Obj, sources: Mapping[str, str], env: Mapping[str, str], fixed: set[str]) -> list[Obj]:
    """The bind mounts of a container, outer ones first. `fixed`: volumes that are for reading."""
    found = []
    for entry in container.get("volumeMounts") or []:
        if entry["name"] not in sources:
            raise MountError(f'volumeMount "{entry["name"]}" names no volume of the pod')
        source = sources[entry["name"]]
        sub = entry.get("subPath") or environment.expand(entry.get("subPathExpr") or "", env)
        if sub:
            if ".." in Path(sub).parts or Path(sub).is_absolute():
                raise MountError(f"subPath {sub!r} leaves its volume")
            inner = os.path.join(source, sub)
            if not os.path.lexists(inner):
                os.makedirs(inner, 0o755, exist_ok=True)
            source = os.path.realpath(inner)
        target = os.path.realpath(entry["mountPath"])
        readonly = bool(entry.get("readOnly")) or entry["name"] in fixed
        found.append({"source": source, "target": target, "readonly": readonly})
    return sorted(found, key=lambda m: m["target"].count("/"))


def remove(place: Path, cluster: str, uid: str) -> None:
    """Take down what `prepare` made."""
    memory = memory_place(cluster, uid)
    if memory.is_dir():
        for entry in memory.iterdir():
            if os.path.ismount(entry):
                linux.umount(str(entry))
        shutil.rmtree(memory, ignore_errors=True)
    shutil.rmtree(place / "volumes", ignore_errors=True)
