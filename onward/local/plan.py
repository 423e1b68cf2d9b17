"""The plan of a cluster: what `onward up` was asked for, kept in the state directory. Every process of it reads this.

cluster.json    the plan
kubeconfig, ... what the API server writes
nodes/NAME/     a node: its devices, its addresses, and a directory for each of its pods
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from onward.core import quantity
from onward.errors import OnwardError, UsageError

FILE = "cluster.json"
UNFINISHED = f"{FILE}.new"
MAX_NODES = 250  # one address of a /24 each
DNS_ADDRESS = "10.96.0.10"  # where pods have addresses of their own
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class NodePlan:
    """One node. Its number gives it its addresses."""

    name: str
    number: int
    capacity: dict[str, str]  # cpu, memory, pods, and extended resources
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """A cluster."""

    nodes: list[NodePlan]
    network: str = "pods"  # "pods": each pod has its own namespace and address; "loopback": all share this machine's
    octet: int = 200  # pods live in 10.OCTET.0.0/16, or 127.OCTET.0.0/16
    port: int = 0
    nfs: dict[str, str] = field(default_factory=dict)  # "server:/path" -> directory here
    host_paths: dict[str, str] = field(default_factory=dict)  # path of a hostPath volume -> directory here
    crash_backoff_s: tuple[float, float] = (10.0, 300.0)
    lease_s: float = 10.0  # a node that says nothing for four times as long is not ready
    evict_s: float = 300.0  # pods of a lost node are deleted after this

    def node(self, name: str) -> NodePlan:
        for node in self.nodes:
            if node.name == name:
                return node
        raise UsageError(f"there is no node {name!r}; the nodes are {', '.join(n.name for n in self.nodes)}")

    def _net(self) -> str:
        return f"{10 if self.network == 'pods' else 127}.{self.octet}"

    def node_address(self, node: NodePlan) -> str:
        return f"{self._net()}.0.{node.number + 1}"

    def pod_cidr(self, node: NodePlan) -> str:
        return f"{self._net()}.{node.number}.0/24"

    def pod_address(self, node: NodePlan, n: int) -> str:
        return f"{self._net()}.{node.number}.{n}"

    @property
    def cidr(self) -> str:
        return f"{self._net()}.0.0/16"

    @property
    def service_cidr(self) -> str:
        """Where services get their addresses from; pods that share this machine's network reach them all the same."""
        return "10.96.0.0/16" if self.network == "pods" else f"{self._net()}.252.0/22"

    @property
    def api_address(self) -> str:
        return str(next(ipaddress.ip_network(self.service_cidr).hosts()))

    @property
    def switch_address(self) -> str:
        return f"{self._net()}.0.1"

    @property
    def host_address(self) -> str:
        return f"{self._net()}.0.254"


def cluster_id(state: Path) -> str:
    """Short, the same for the same directory: the names of namespaces, links and control groups begin with it."""
    return "ow" + hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:5]


def save(plan: Plan, state: Path) -> None:
    new = state / UNFINISHED
    new.write_text(json.dumps(asdict(plan), indent=2) + "\n")
    new.rename(state / FILE)


def load(state: Path) -> Plan:
    try:
        data = json.loads((state / FILE).read_text())
        nodes = [NodePlan(**n) for n in data.pop("nodes")]
        data["crash_backoff_s"] = tuple(data["crash_backoff_s"])
        return Plan(nodes=nodes, **data)
    except FileNotFoundError as e:
        raise OnwardError(f"no cluster in {state}; onward up makes one") from e
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise OnwardError(f"{state / FILE} cannot be read ({e}); onward down removes what is there") from e


def uniform(count: int, cpus: str, memory: str, gpus: int, npus: int = 0) -> list[NodePlan]:
    """Nodes that are all alike: node-1, node-2, ..."""
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"--nodes {count}: a cluster on one machine has 1 to {MAX_NODES} nodes")
    capacity = {"cpu": cpus, "memory": memory, "pods": "110"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    if npus:
        capacity["huawei.com/Ascend910"] = str(npus)
    problems = _bad_quantities(capacity)
    if problems:
        raise UsageError(problems)
    return [NodePlan(f"node-{n}", n, dict(capacity)) for n in range(1, count + 1)]


def _file(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as e:
        raise UsageError(f"--node-file {path} cannot be read: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise UsageError(f"--node-file {path}: {e}") from e


def directories(path: Path, key: str) -> dict[str, str]:
    """What volumes are on this machine, as the file of nodes says under `nfs` or `hostPaths`; relative to the file."""
    data = _file(path)
    given = (data.get(key) if isinstance(data, dict) else None) or {}
    if not isinstance(given, dict):
        raise UsageError(f"{path}: {key}: a mapping is expected, of what pods ask for to a directory here")
    found = {str(asked): str((path.parent / str(place)).resolve()) for asked, place in given.items()}
    problems = [f"{path}: {key}: {place} is not a directory" for place in found.values() if not Path(place).is_dir()]
    if problems:
        raise UsageError(problems)
    return found


def from_file(path: Path, default: NodePlan) -> list[NodePlan]:
    """Nodes as a YAML file lists them; what an entry leaves out is as in `default`."""
    data = _file(path)
    entries = data.get("nodes") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"--node-file {path}: a list of nodes is expected, for example `nodes: [{{name: node-1}}]`")
    nodes: list[NodePlan] = []
    problems: list[str] = []
    for i, entry in enumerate(entries):
        where = f"{path}: nodes[{i}]"
        if not isinstance(entry, dict):
            problems.append(f"{where}: not a mapping")
            continue
        for _ in range(_count(entry, where, problems)):
            nodes.append(_node(entry, len(nodes) + 1, default, where, problems))
    names = [n.name for n in nodes]
    problems += [f"{path}: two nodes are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    if len(nodes) > MAX_NODES:
        problems.append(f"{path}: {len(nodes)} nodes; at most {MAX_NODES}")
    if problems:
        raise UsageError(problems)
    return nodes


_KEYS = {"name", "count", "cpus", "memory", "gpus", "pods", "resources", "labels", "annotations", "taints"}


def _count(entry: dict[str, Any], where: str, problems: list[str]) -> int:
    count = entry.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= MAX_NODES:
        problems.append(f"{where}.count: {count!r} is not a number from 1 to {MAX_NODES}")
        return 0
    return count


def _node(entry: dict[str, Any], number: int, default: NodePlan, where: str, problems: list[str]) -> NodePlan:
    unknown = set(entry) - _KEYS
    if unknown:
        known = ", ".join(sorted(_KEYS))
        problems.append(f"{where}: unknown {', '.join(sorted(unknown))}; an entry has {known}")
    capacity = dict(default.capacity)
    for key, name in (("cpus", "cpu"), ("memory", "memory"), ("pods", "pods"), ("gpus", "nvidia.com/gpu")):
        if key in entry:
            capacity[name] = str(entry[key])
    capacity |= {str(k): str(v) for k, v in (entry.get("resources") or {}).items()}
    problems += [f"{where}: {p}" for p in _bad_quantities(capacity)]
    name = str(entry.get("name") or f"node-{number}")
    if entry.get("count", 1) != 1 and entry.get("name"):
        name = f"{name}-{number}"
    return replace(
        default,
        name=name,
        number=number,
        capacity=capacity,
        labels={**default.labels, **{str(k): str(v) for k, v in (entry.get("labels") or {}).items()}},
        annotations={str(k): str(v) for k, v in (entry.get("annotations") or {}).items()},
        taints=[_taint(t, f"{where}.taints[{i}]", problems) for i, t in enumerate(entry.get("taints") or [])],
    )


def _taint(given: Any, where: str, problems: list[str]) -> dict[str, str]:
    """`key=value:Effect` as kubectl takes it, or a mapping."""
    if isinstance(given, str):
        head, _, effect = given.rpartition(":")
        key, _, value = head.partition("=")
        given = {"key": key, "value": value, "effect": effect}
    if not isinstance(given, dict) or not given.get("key"):
        problems.append(f"{where}: write key=value:NoSchedule")
        return {}
    if given.get("effect") not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        problems.append(f"{where}: effect {given.get('effect')!r} is not NoSchedule, PreferNoSchedule or NoExecute")
    return {str(k): str(v) for k, v in given.items() if v}


def _bad_quantities(capacity: dict[str, str]) -> list[str]:
    problems = []
    for name, value in capacity.items():
        try:
            if quantity.amount(name, value) < 0:
                problems.append(f"{name}: {value} is negative")
        except quantity.QuantityError as e:
            problems.append(f"{name}: {e}")
    return problems
