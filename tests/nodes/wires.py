"""Hosts on one machine: network namespaces of our own, joined by a bridge that has one too. Links can be cut.

A link that is taken down swallows packets: nobody is told, no connection is reset. That is how a cable fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2 to make network namespaces"
)


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


class Wires:
    """Hosts 0 to n-1, at 10.77.0.1, 10.77.0.2, ..."""

    def __init__(self, hosts: int) -> None:
        self._name = f"ow{os.getpid() % 100000}"
        self._hosts = hosts
        self._switch = f"{self._name}s"
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        for i in range(hosts):
            self._add(i)

    def _add(self, i: int) -> None:
        ns, port = self._host(i), f"p{i}"
        ip("netns", "add", ns)
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
        ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        ip("-n", ns, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
        ip("-n", ns, "link", "set", "eth0", "up")
        ip("-n", ns, "link", "set", "lo", "up")

    def _host(self, i: int) -> str:
        return f"{self._name}h{i}"

    def address(self, i: int) -> str:
        return f"10.77.0.{i + 1}"

    def on(self, i: int) -> list[str]:
        """Put before a command, it runs on host i."""
        return ["ip", "netns", "exec", self._host(i)]

    def cut(self, i: int) -> None:
        ip("-n", self._switch, "link", "set", f"p{i}", "down")

    def mend(self, i: int) -> None:
        ip("-n", self._switch, "link", "set", f"p{i}", "up")

    def remove(self) -> None:
        for ns in [self._switch, *(self._host(i) for i in range(self._hosts))]:
            ip("netns", "del", ns, check=False)
