"""Where pods go, and the words for why they do not."""

from __future__ import annotations

from typing import Any

import pytest
from shapes import GI, HOSTNAME, affinity, room, wish

from onward.core.board import Board
from onward.core.candidates import Candidates
from onward.core.gang import Gang, attempt
from onward.core.placement import Room, Wish
from onward.core.quantity import QuantityError, millis, parse, pod_requests, whole, write


def best(pod: Wish, board: Board | list[Room]) -> str:
    """The name of the node, or empty."""
    found = Candidates(board if isinstance(board, Board) else Board(board), pod).best()
    return found.name if found is not None else ""


def why(pod: Wish, board: Board | list[Room]) -> str:
    search = Candidates(board if isinstance(board, Board) else Board(board), pod)
    assert search.best() is None
    return search.why()


def occupied(rooms: list[Room], *residents: tuple[str, Wish]) -> Board:
    board = Board(rooms)
    for node, pod in residents:
        board.put(pod, node)
    return board


def test_the_words_of_kube_scheduler() -> None:
    rooms = [
        room("a", cpu=1),
        room("b", unschedulable=True),
        room("c", taints=[{"key": "x", "value": "y", "effect": "NoSchedule"}]),
        room("d", cpu=1),
        room("e", taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]),
    ]
    assert why(wish(cpu=2), rooms) == (
        "0/5 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, "
        "1 node(s) had untolerated taint {x: y}, 1 node(s) were unschedulable, 2 Insufficient cpu."
    )
    both = wish(cpu=20, requests={"nvidia.com/gpu": 1})
    assert why(both, [room("a")]) == "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu."
    assert why(wish(), []) == "no nodes available to schedule pods"
    assert "1 node(s) didn't match Pod's node affinity/selector" in why(wish(selector={"disk": "ssd"}), [room("a")])


def test_anti_affinity_works_both_ways() -> None:
    apart = affinity("podAntiAffinity", job="j")
    taken = occupied([room("a")], ("a", wish("r", labels={"job": "j"})))
    assert "didn't match pod anti-affinity rules" in why(wish(affinity=apart), taken)
    guarded = occupied([room("a")], ("a", wish("r", affinity=apart)))
    assert "didn't satisfy existing pods anti-affinity rules" in why(wish(labels={"job": "j"}), guarded)
    elsewhere = occupied([room("a")], ("a", Wish("other/r", "other", {"job": "j"}, {})))
    assert best(wish(affinity=apart), elsewhere) == "a", "another namespace is another world"
    zones = [room("a", labels={"zone": "1"}), room("b", labels={"zone": "1"}), room("c", labels={"zone": "2"})]
    wide = affinity("podAntiAffinity", "zone", job="j")
    assert best(wish(labels={"job": "j"}), occupied(zones, ("a", wish("r", affinity=wide)))) == "c"
    assert best(wish(affinity=wide), occupied(zones, ("b", wish("r", labels={"job": "j"})))) == "c"


def test_affinity_to_a_zone() -> None:
    together = affinity("podAffinity", "zone", app="x")
    rooms = [room("a", labels={"zone": "1"}), room("b", labels={"zone": "2"}), room("c", labels={"zone": "2"})]
    first = wish(labels={"app": "x"}, affinity=together)
    assert best(first, rooms), "the first of its kind may begin anywhere"
    board = occupied(rooms, ("b", wish("r", labels={"app": "x"})))
    assert best(wish(affinity=together), board) in ("b", "c")
    assert "didn't match pod affinity rules" in why(wish(affinity=together), rooms[:1])
    gang = Gang("default/g", [wish(f"w{i}", cpu=4, labels={"app": "x"}, affinity=together) for i in range(4)], 4)
    assert set(attempt(Board(rooms), gang).nodes.values()) == {"b", "c"}, "the zone with room for all"


def test_a_gang_gets_all_or_nothing() -> None:
    apart = affinity("podAntiAffinity", job="j")
    gang = [wish(f"w{i}", labels={"job": "j"}, affinity=apart) for i in range(3)]
    answer = attempt(Board([room("a"), room("b"), room("c")]), Gang("default/g", gang, 3))
    assert set(answer.nodes.values()) == {"a", "b", "c"}
    board = Board([room("a"), room("b")])
    answer = attempt(board, Gang("default/g", gang, 3))
    assert (answer.nodes, answer.reason, answer.could) == ({}, "NotEnoughResources", 2)
    assert answer.message == "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
    assert not any(spot.residents for spot in board), "nothing is held by one that waits"
    assert len(attempt(board, Gang("default/g", gang, 2)).nodes) == 2


def test_preferences() -> None:
    rooms = [room("node-1"), room("node-2"), room("node-10")]
    assert best(wish(), rooms) == "node-1"
    assert best(wish(prefer="node-10"), rooms) == "node-10"
    assert best(wish(), occupied(rooms, ("node-1", wish("r", cpu=4)))) == "node-2", "the emptiest"
    assert best(wish(prefer="node-2"), occupied(rooms, ("node-2", wish("r", cpu=8)))) == "node-1", "if it fits"
    term = {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}
    weighted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": term}]}
    rooms[1].labels = {"fast": "yes"}
    assert best(wish(affinity={"nodeAffinity": weighted}), rooms) == "node-2"
    near = {"weight": 10, "podAffinityTerm": {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": HOSTNAME}}
    board = occupied(rooms[::2], ("node-10", wish("r", labels={"a": "b"})))
    for kind, node in (("podAffinity", "node-10"), ("podAntiAffinity", "node-1")):
        assert best(wish(affinity={kind: {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}), board) == node
    rooms[2].taints = [{"key": "x", "effect": "PreferNoSchedule"}]
    assert best(wish(exclude=frozenset({"node-1"})), rooms[::2]) == "node-10"


def test_nodes_that_failed_a_pod() -> None:
    rooms = [room("node-1"), room("node-2", cpu=1)]
    burnt = wish(cpu=2, avoid=frozenset({"node-1"}), prefer="node-1")
    assert best(burnt, rooms) == "node-1", "an avoided node is better than none"
    assert best(burnt, [*rooms, room("node-3", taints=[{"key": "x", "effect": "PreferNoSchedule"}])]) == "node-3"
    assert why(wish(cpu=2, exclude=frozenset({"node-1"})), rooms) == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were excluded after a failure."
    )


@pytest.mark.parametrize(
    ("toleration", "good"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "x", "operator": "Exists"}, True),
        ({"key": "x", "value": "y"}, True),
        ({"key": "x", "value": "y", "effect": "NoSchedule"}, True),
        ({"key": "x", "value": "z"}, False),
        ({"key": "x", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "z", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], good: bool) -> None:
    tainted = room("a", taints=[{"key": "x", "value": "y", "effect": "NoSchedule"}])
    assert (best(wish(tolerations=[toleration]), [tainted]) == "a") == good


def test_quantities() -> None:
    assert [whole(t) for t in ("16Gi", "1k", "1e3", "0.5Ki", 7, "100m")] == [16 * GI, 1000, 1000, 512, 7, 1]
    assert [millis(t) for t in ("1", "500m", "0.1", "1n")] == [1000, 500, 100, 1]
    assert [write("cpu", 1500), write("cpu", 2000), write("memory", 16 * GI)] == ["1500m", "2", "16Gi"]
    for bad in ("", "x", "1 Gi", "Gi", "--1", "1" * 100, "1e9999", None):
        with pytest.raises(QuantityError):
            parse(bad)


def test_what_a_pod_needs() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [container("100m", restartPolicy="Always"), container("3")],
        "containers": [container("1"), {"resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        "overhead": {"cpu": "50m"},
    }
    assert pod_requests(spec) == {"cpu": 3150, "nvidia.com/gpu": 2}
    spec["resources"] = {"requests": {"cpu": "4"}, "limits": {"cpu": "8", "memory": "1Gi"}}
    assert pod_requests(spec) == {"cpu": 4050, "memory": GI, "nvidia.com/gpu": 2}, "of the pod as a whole"
