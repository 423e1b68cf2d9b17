"""Protected values, taken apart to be sent and built again."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import StateError
from onward.train.streams import memory_of, tensor_bytes
from onward.train.values import Snapshot, own_tensors, plain, problem, rebuilt, take_over

SCALARS = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_what_is_sent_is_what_arrives(value: object) -> None:
    """Integers of any size: MessagePack knows those of 64 bits."""
    sent = msgspec.msgpack.encode(plain("x", value, lambda path, tensor: None))
    assert rebuilt(msgspec.msgpack.decode(sent), [], value) == value


Point = namedtuple("Point", "x y")


def sent(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """As it comes out at the other end, with the tensors it speaks of."""
    tensors: list[torch.Tensor] = []

    def take(path: str, t: torch.Tensor) -> list[Any]:
        tensors.append(t.clone())
        return ["\x00onward.tensor", len(tensors) - 1]

    return msgspec.msgpack.decode(msgspec.msgpack.encode(plain("x", value, take))), tensors


@pytest.mark.parametrize(
    "value",
    [
        (1, (2.5, "a"), []),
        Point(1, Point(None, [2])),
        OrderedDict(z=1, a=(2,)),
        Counter("abca"),
        defaultdict(int, a=1),
        defaultdict(list),
        torch.Size([2, 3]),
        np.float64(0.1),
        np.int32(7),
        np.bool_(True),
        {3: "three", 2.5: b"x"},
    ],
    ids=repr,
)
def test_a_value_arrives_with_its_type(value: object) -> None:
    def types(v: Any) -> Any:
        inner = v.values() if isinstance(v, dict) else v if isinstance(v, list | tuple) else ()
        return type(v), getattr(v, "default_factory", None), [types(i) for i in inner]

    # Also where nothing like it was before, as in a list that has grown.
    arrived = rebuilt(*sent([value]), [])[0]
    assert arrived == value
    assert types(arrived) == types(value)
    if isinstance(value, dict):
        assert [*arrived] == [*value], "in the order in which it was filled"


def test_what_is_one_stays_one() -> None:
    shared = [1]
    value = {"a": shared, "b": {"again": shared}, "c": [1]}
    arrived = rebuilt(*sent(value), {})
    assert arrived["a"] is arrived["b"]["again"] is not arrived["c"]


def test_what_the_script_holds_on_to_is_what_is_put_back() -> None:
    """In a redo in the same process."""
    inner, weights, log = OrderedDict(n=1), torch.ones(2), [0.5]
    stats = {"inner": inner, "weights": weights, "log": log, "again": log, "best": Point(1, log), "n": Counter(a=2)}
    before = Snapshot("stats", stats)
    assert repr(before.value) == repr(stats)
    inner["n"], inner["m"] = 2, 3
    weights += 1
    log.append(7)
    stats["again"], stats["weights"], stats["best"] = [], weights * 2, Point(2, [])
    stats["new"], stats["n"]["a"] = 1, 5
    before.put_back()
    assert [*stats] == ["inner", "weights", "log", "again", "best", "n"]
    assert stats["n"] == Counter(a=2)
    assert stats["inner"] is inner == {"n": 1}
    assert stats["log"] is stats["again"] is stats["best"].y is log == [0.5]
    assert stats["weights"] is weights
    assert weights.tolist() == [1, 1]


def test_what_the_script_holds_on_to_is_what_another_state_goes_into() -> None:
    """In a replacement, whose script has run up to here itself."""

    def made(n: int) -> dict[str, Any]:
        log = [float(n)]
        return {"inner": OrderedDict(n=n), "log": log, "again": log, "rows": [{"n": n}]}

    here, there = made(1), made(2)
    inner, log, row = here["inner"], here["log"], here["rows"][0]
    there["log"].append(3.0)
    there["rows"].append({"n": 4})
    take_over(here, *sent(there))
    assert here == there
    assert here["inner"] is inner
    assert here["log"] is here["again"] is log
    assert here["rows"][0] is row


def test_tensors_in_a_container_are_found_by_their_path() -> None:
    one, two = torch.zeros(1), torch.ones(2)
    assert own_tensors("x", {"a": [one], "b": (two,), "c": one}) == {"x.a[0]": one, "x.b[0]": two, "x.c": one}
    assert own_tensors("x", torch.optim.SGD([one], lr=1.0)) == {}


def test_one_that_contains_itself() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = loop
    assert problem("x", loop) == ""
    arrived = rebuilt(*sent(loop), {})
    assert arrived["me"] is arrived


def test_what_cannot_be_protected_is_named() -> None:
    local = namedtuple("local", "x")
    assert "x.a is a local, which another process would not find by name; define it at the top" in problem(
        "x", {"a": local(1)}
    )
    assert "x.a is a defaultdict that makes its values with <lambda>; one inside" in problem(
        "x", {"a": defaultdict(lambda: 1)}
    )
    assert "x.a[0] is a set; protected state is" in problem("x", {"a": [{1}]})
    assert "x has a key of type tuple" in problem("x", {(1, 2): 3})


def test_what_came_in_later_and_cannot_be_protected_is_named_and_put_back_all_the_same() -> None:
    own: dict[str, Any] = {"a": {"b": {1}, "n": 1}, (1, 2): 3}
    kept, was = Snapshot("x", own), own["a"]["b"]
    assert "x has a key of type tuple" in kept.problem
    assert "x.a.b is a set" in Snapshot("x", {"a": own["a"]}).problem
    own["a"].update(b="other", n=2)
    del own[1, 2]
    kept.put_back()
    assert own == {"a": {"b": {1}, "n": 1}, (1, 2): 3}
    assert own["a"]["b"] is was
    assert Snapshot("x", {"a": 1}).problem == ""


def test_no_type_is_built_that_is_more_than_a_container() -> None:
    for name in ("subprocess:Popen", "builtins:int", "no.such:thing", "os:system"):
        with pytest.raises(StateError, match="is not known here"):
            rebuilt(["\x00onward.kind", name, []], [], None)


@pytest.mark.parametrize("read", [memory_of, tensor_bytes])
def test_memory_that_is_not_here_is_never_read(read):
    with pytest.raises(TypeError, match="copy it to the CPU first"):
        read(torch.empty(4, device="meta"))
