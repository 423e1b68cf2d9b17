"""The network of the cluster, made of this machine's own parts: namespaces, bridges and virtual cables.

    this machine --- switch --- node-1 --- pods of node-1
                       |   `--- node-2 --- pods of node-2
                       `- service addresses and DNS

Each node is a namespace with an address, each pod another one behind it. So two nodes' ports never collide, pods are
reached as on a real cluster, and a node is cut off by taking its cable down: packets vanish, nobody is told.
Nothing leaves this machine, and no firewall rule is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable

from onward.errors import OnwardError
from onward.local.plan import NodePlan, Plan

COMMAND_S = 30.0
OCTETS = range(200, 250)


class WiringError(OnwardError):
    """A command that sets the network up has failed."""


class Taken(WiringError):
    """Another cluster of this machine has these addresses."""


def possible() -> str:
    """Why pods cannot have a network of their own here; empty when they can."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "there is no ip command (Debian: apt install iproute2)"
    probe = f"ow-probe-{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        _ip("-n", probe, "link", "add", "br0", "type", "bridge")
    except WiringError as e:
        return f"network namespaces cannot be made here ({e})"
    finally:
        _ip("netns", "del", probe, check=False)
    return ""


def _ip(*words: str, check: bool = True) -> str:
    p = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if check and p.returncode != 0:
        raise WiringError(f"ip {' '.join(words)}: {p.stderr.strip()}")
    return p.stdout


def _batch(lines: Iterable[str], namespace: str = "") -> None:
    """Many commands, one process. What exists already is not made again: all of this can be repeated."""
    text = "\n".join(lines) + "\n"
    command = ["ip", *(["-n", namespace] if namespace else []), "-force", "-batch", "-"]
    p = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    harmless = ("Command failed", "RTNETLINK answers: File exists", "Error: ipv4: Address already assigned")
    bad = [line for line in p.stderr.splitlines() if not line.startswith(harmless)]
    if bad:
        raise WiringError(f"{' '.join(command)}: {'; '.join(bad)}")


def free_octet() -> int:
    """A part of 10.0.0.0/8 that this machine does not know yet."""
    used = set()
    for route in json.loads(_ip("-json", "route", "show", "table", "all") or "[]"):
        destination = str(route.get("dst", ""))
        if destination.startswith("10."):
            used.add(int(destination.split(".")[1].partition("/")[0]))
    for octet in OCTETS:
        if octet not in used:
            return octet
    raise WiringError(f"10.{OCTETS[0]}.0.0/16 to 10.{OCTETS[-1]}.0.0/16 are all in use; onward up --network loopback")


class Wiring:
    """Names and commands for one cluster."""

    def __init__(self, cluster: str, plan: Plan) -> None:
        self._id, self._plan = cluster, plan

    @property
    def switch(self) -> str:
        return f"{self._id}-switch"

    def node(self, node: NodePlan) -> str:
        return f"{self._id}-n{node.number}"

    def pod(self, uid: str) -> str:
        return f"{self._id}-p{uid.replace('-', '')[:12]}"

    @staticmethod
    def path(namespace: str) -> str:
        return f"/run/netns/{namespace}"

    def _have(self, namespace: str) -> bool:
        return os.path.exists(self.path(namespace))

    def _make(self, namespace: str) -> None:
        if not self._have(namespace):
            _ip("netns", "add", namespace)
        _forward(namespace)

    def build(self) -> None:
        """The switch, and this machine's own cable to it. Raises Taken."""
        self._make(self.switch)
        plan = self._plan
        _batch(
            [
                "link set lo up",
                _bridge(plan, 0),
                f"addr add {plan.switch_address}/24 dev br0",
                "link set br0 up",
                f"route add local {plan.service_cidr} dev lo",
            ],
            self.switch,
        )
        cable = f"{self._id}h"
        if not os.path.exists(f"/sys/class/net/{cable}"):
            _ip("link", "add", cable, "type", "veth", "peer", "name", "host", "netns", self.switch)
        _batch(["link set host master br0 up"], self.switch)
        self._claim(cable)
        _batch(
            [
                f"addr add {plan.host_address}/24 dev {cable}",
                f"route replace {plan.cidr} via {plan.switch_address}",
            ]
        )

    def _claim(self, cable: str) -> None:
        """The route is whose it is first: the kernel has one of each."""
        _ip("link", "set", cable, "up")
        _ip("route", "add", self._plan.cidr, "dev", cable, check=False)
        routes = json.loads(_ip("-json", "route", "show", "exact", self._plan.cidr) or "[]")
        others = [str(route.get("dev")) for route in routes if route.get("dev") != cable]
        if others:
            raise Taken(f"{self._plan.cidr} leads to another cluster of this machine already ({others[0]})")

    def build_node(self, node: NodePlan, connected: bool = True) -> None:
        """`connected`: not if it is cut off; a process that is started anew must not mend that."""
        name, plan = self.node(node), self._plan
        self._make(name)
        links = _ip("-n", name, "-json", "link", "show")
        if '"uplink"' not in links:
            _ip(
                "-n",
                self.switch,
                "link",
                "add",
                f"n{node.number}",
                "type",
                "veth",
                "peer",
                "name",
                "uplink",
                "netns",
                name,
            )
        _batch(
            [
                "link set lo up",
                f"addr add {plan.node_address(node)}/24 dev uplink",
                "link set uplink up",
                _bridge(plan, node.number),
                f"addr add {plan.pod_address(node, 1)}/24 dev br0",
                "link set br0 up",
                f"route add default via {plan.switch_address}",
            ],
            name,
        )
        _batch(
            [
                f"link set n{node.number} master br0 {'up' if connected else 'down'}",
                f"route add {plan.pod_cidr(node)} via {plan.node_address(node)}",
            ],
            self.switch,
        )

    def cut(self, node: NodePlan) -> None:
        _ip("-n", self.switch, "link", "set", f"n{node.number}", "down")

    def mend(self, node: NodePlan) -> None:
        _ip("-n", self.switch, "link", "set", f"n{node.number}", "up")
        _batch([f"route add {self._plan.pod_cidr(node)} via {self._plan.node_address(node)}"], self.switch)

    def build_pod(self, node: NodePlan, uid: str, address: str) -> str:
        """A namespace with one cable. Returns its file."""
        name, there = self.pod(uid), self.node(node)
        if not self._have(name):
            _ip("netns", "add", name)
        if '"eth0"' not in _ip("-n", name, "-json", "link", "show"):
            cable = _cable(uid)
            _ip("-n", there, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _batch([f"link set {cable} master br0 up"], there)
        _batch(
            [
                "link set lo up",
                f"addr add {address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self._plan.pod_address(node, 1)}",
            ],
            name,
        )
        return self.path(name)

    def remove_pod(self, node: NodePlan, uid: str) -> None:
        """The cable too: a namespace outlives its name while a socket in it is left, and would go on answering for its
        address, which the next pod may have."""
        _ip("-n", self.node(node), "link", "del", _cable(uid), check=False)
        if self._have(self.pod(uid)):
            _ip("netns", "del", self.pod(uid), check=False)

    def remove_all(self) -> None:
        """Everything of this cluster, also what a crash left."""
        _ip("link", "del", f"{self._id}h", check=False)
        try:
            names = [n for n in os.listdir("/run/netns") if n.startswith(f"{self._id}-")]
        except OSError:
            return
        for name in names:
            _ip("netns", "del", name, check=False)


def _bridge(plan: Plan, number: int) -> str:
    """With a hardware address of its own: else it has that of one of its cables, and another one when that pod goes,
    while the other pods still send to the old one."""
    return f"link add br0 address 02:6f:77:{plan.octet:02x}:{number:02x}:01 type bridge"


def _cable(uid: str) -> str:
    """The end of a pod's cable that is in its node."""
    return f"v{uid.replace('-', '')[:12]}"


def _forward(namespace: str) -> None:
    """Let a namespace pass packets on. /proc shows the values of where we are, so this is done from inside."""
    from onward.local.shim import linux

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            linux.enter(Wiring.path(namespace), linux.CLONE_NEWNET)
            with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
                f.write("1")
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise WiringError(f"net.ipv4.ip_forward could not be set in {namespace}")
