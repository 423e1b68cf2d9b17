"""Pods that come and go leave the network of the others alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from waiting import until

from onward.local import wiring
from onward.local.plan import NodePlan, Plan
from onward.local.wiring import Wiring

NODE = NodePlan("node-1", 1, {"cpu": "1"})
FIRST, SECOND = "0123456789ab-1", "ba9876543210-2"  # uids


class Built:
    def __init__(self, wires: Wiring, plan: Plan) -> None:
        self.wires, self._plan = wires, plan

    def make(self, uid: str, number: int) -> None:
        self.wires.build_pod(NODE, uid, self._plan.pod_address(NODE, number))

    def links(self) -> dict[str, str]:
        """What the node is connected by: name and hardware address of each."""
        command = ["ip", "-n", self.wires.node(NODE), "-json", "link", "show"]
        said = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout
        return {str(link["ifname"]): str(link["address"]) for link in json.loads(said)}


@pytest.fixture
def node() -> Iterator[Built]:
    why = wiring.possible()
    if why:
        pytest.skip(f"pods cannot have namespaces of their own here: {why}")
    plan = Plan([NODE], octet=wiring.free_octet())
    built = Wiring("owtest0", plan)
    try:
        built.build()
        built.build_node(NODE)
        yield Built(built, plan)
    finally:
        built.remove_all()


def test_a_pod_that_is_gone_answers_for_its_address_no_more(node: Built) -> None:
    """Something of it is left, as an unsent word of a killed process would be."""
    before = set(node.links())
    node.make(FIRST, 2)
    left = subprocess.Popen(["ip", "netns", "exec", node.wires.pod(FIRST), "sleep", "60"])
    try:
        until(lambda: b"sleep" in _words(left.pid), "it is in there")
        node.wires.remove_pod(NODE, FIRST)
        assert set(node.links()) == before
    finally:
        left.kill()
        left.wait(10)


def test_a_pod_that_goes_leaves_the_way_of_the_others_as_it_was(node: Built) -> None:
    node.make(FIRST, 2)
    node.make(SECOND, 3)
    gateway = node.links()["br0"]
    for uid in (FIRST, SECOND):
        before = len(node.links())
        node.wires.remove_pod(NODE, uid)
        until(lambda n=before: len(node.links()) < n, "its cable is gone")  # type: ignore[misc]
        assert node.links()["br0"] == gateway


def _words(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        return f.read()
