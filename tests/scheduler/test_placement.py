"""Where pods go, and the words for why they do not."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.placement import Resident, Room, Wish, best, place
from onward.core.quantity import QuantityError, millis, parse, pod_requests, whole, write

GI = 2**30


def room(name: str, cpu: int = 8, gpus: int = 0, **more: Any) -> Room:
    allocatable = {"cpu": cpu * 1000, "memory": 16 * GI, "pods": 110, "nvidia.com/gpu": gpus}
    labels = {"kubernetes.io/hostname": name, **more.pop("labels", {})}
    return Room(name, labels, allocatable, **more)


def wish(name: str = "p", cpu: int = 1, **more: Any) -> Wish:
    requests = {"cpu": cpu * 1000, **more.pop("requests", {})}
    return Wish(f"default/{name}", "default", more.pop("labels", {}), requests, **more)


def why(pod: Wish, rooms: list[Room]) -> str:
    found, reason = best(pod, rooms)
    assert found is None
    return reason


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


def affinity(kind: str, key: str = "kubernetes.io/hostname", **labels: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_anti_affinity_works_both_ways() -> None:
    apart = affinity("podAntiAffinity", job="j")
    taken = room("a", residents=[Resident("default", {"job": "j"})])
    assert "didn't match pod anti-affinity rules" in why(wish(affinity=apart), [taken])
    guarded = room("a", residents=[Resident("default", {}, apart)])
    assert "didn't satisfy existing pods anti-affinity rules" in why(wish(labels={"job": "j"}), [guarded])
    elsewhere = room("a", residents=[Resident("other", {"job": "j"})])
    assert best(wish(affinity=apart), [elsewhere])[0] is elsewhere, "another namespace is another world"


def test_affinity_to_a_zone() -> None:
    together = affinity("podAffinity", "zone", app="x")
    rooms = [room("a", labels={"zone": "1"}), room("b", labels={"zone": "2"}), room("c", labels={"zone": "2"})]
    first = wish(labels={"app": "x"}, affinity=together)
    assert best(first, rooms)[0] is not None, "the first of its kind may begin anywhere"
    rooms[1].residents.append(Resident("default", {"app": "x"}))
    found, _ = best(wish(affinity=together), rooms)
    assert found is not None
    assert found.labels["zone"] == "2"
    assert "didn't match pod affinity rules" in why(wish(affinity=together), rooms[:1])


def test_a_gang_gets_all_or_nothing() -> None:
    apart = affinity("podAntiAffinity", job="j")
    gang = [wish(f"w{i}", labels={"job": "j"}, affinity=apart) for i in range(3)]
    assert set(place(gang, [room("a"), room("b"), room("c")]).nodes.values()) == {"a", "b", "c"}
    rooms = [room("a"), room("b")]
    answer = place(gang, rooms)
    assert answer.nodes == {}
    assert set(answer.why) == {"default/w0", "default/w1", "default/w2"}
    assert answer.why["default/w2"].startswith("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity")
    assert answer.why["default/w0"] == "2/3 pods of the gang would fit"
    assert not any(r.residents or r.used for r in rooms), "nothing is held by one that waits"


def test_preferences() -> None:
    rooms = [room("node-1"), room("node-2"), room("node-10")]
    assert best(wish(), rooms)[0] is rooms[0]
    assert best(wish(prefer="node-10"), rooms)[0] is rooms[2]
    rooms[0].take(wish(cpu=4))
    assert best(wish(), rooms)[0] is rooms[1], "the emptiest"
    term = {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}
    weighted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": term}]}
    rooms[0].labels = {"fast": "yes"}
    assert best(wish(affinity={"nodeAffinity": weighted}), rooms)[0] is rooms[0]
    assert why(wish(avoid=frozenset({"node-1"})), rooms[:1]).endswith("1 node(s) were excluded after a failure.")


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
    assert (best(wish(tolerations=[toleration]), [tainted])[0] is not None) == good


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
