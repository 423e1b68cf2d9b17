"""What a shim is told: ports by number, tokens that are renewed in time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.kube.queue import WorkQueue
from onward.local import plan as plans
from onward.local.node import recipe, references
from onward.local.node.agent import Agent
from onward.local.node.sandbox import Local
from onward.local.shim import probes

WEB = {"httpGet": {"path": "/bye", "port": "web"}}
CONTAINER = {
    "name": "c",
    "ports": [{"name": "web", "containerPort": 8080}],
    "lifecycle": {"preStop": WEB, "postStart": {"tcpSocket": {"port": 7}}, "stopSignal": "SIGUSR1"},
}


def test_hooks_name_ports_as_probes_do() -> None:
    hooks = recipe._hooks(CONTAINER)
    assert hooks == {"preStop": {"httpGet": {"path": "/bye", "port": 8080}}, "postStart": {"tcpSocket": {"port": 7}}}


def test_a_port_that_is_not_there_is_said() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os._exit(probes.ask_network(WEB, "127.0.0.1"))
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "the container has no port of the name 'web'"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.parametrize(
    ("spec", "name", "hosts"),
    [
        ({}, "p", "p"),
        ({"hostname": "h", "subdomain": "s"}, "h", "h.s.n.svc.cluster.local h"),
        ({"subdomain": "s", "setHostnameAsFQDN": True}, "p.s.n.svc.cluster.local", "p.s.n.svc.cluster.local p"),
        ({"setHostnameAsFQDN": True}, "p", "p"),
        ({"hostname": "h", "subdomain": "s", "hostnameOverride": "any.of.mine"}, "any.of.mine", "any.of.mine"),
        ({"hostNetwork": True, "nodeName": "node-1"}, "node-1", "node-1"),
    ],
)  # fmt: skip
def test_what_a_pod_is_called(spec: dict[str, Any], name: str, hosts: str) -> None:
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}
    assert recipe.hostname(pod) == name
    inputs: Any = SimpleNamespace(pod=pod, facts={"podIP": "10.1.1.1"})
    assert f"10.1.1.1\t{hosts}" in recipe._hosts(inputs).splitlines()


class Tokens:
    """In the place of the API: each token is another one; some accounts are gone."""

    def __init__(self) -> None:
        self.given = 0

    async def request(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.given += 1
        return {"status": {"token": f"{body['spec']['expirationSeconds']}-{self.given}"}}


def test_tokens_are_renewed_when_four_fifths_of_their_time_are_over(tmp_path: Path) -> None:
    sources = [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}, {"configMap": {"name": "m"}}]
    pod = {
        "metadata": {"namespace": "n"},
        "spec": {"volumes": [{"name": "v", "projected": {"sources": sources}}, {"name": "e", "emptyDir": {}}]},
    }
    assert references.tokens_last_s(pod) == 480
    node = plans.NodePlan("node-1", 1, {})
    local = Local("u", "n/p", tmp_path, "", 0.0, False)

    async def story() -> None:
        agent, loop = Agent(tmp_path, plans.Plan([node], network="loopback"), node, ""), asyncio.get_running_loop()
        agent._client, agent._queue = Tokens(), WorkQueue()  # type: ignore[assignment]
        before = loop.time()
        assert await agent._tokens(pod, local) == {("", 600): "600-1"}
        assert await agent._tokens(pod, local) == {("", 600): "600-1"}, "it is still good"
        assert 470 < agent._queue._timers["u"].when() - before < 490
        local.tokens_until -= 480
        assert await agent._tokens(pod, local) == {("", 600): "600-2"}
        agent._queue.close()

    asyncio.run(story())
