"""Protected values, taken apart to be sent and built again."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from onward.train.values import plain, problem, rebuilt

SCALARS = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_what_is_sent_is_what_arrives(value: object) -> None:
    """Integers of any size: MessagePack knows those of 64 bits."""
    sent = msgspec.msgpack.encode(plain("x", value, lambda path, tensor: None))
    assert rebuilt(msgspec.msgpack.decode(sent), [], value) == value


def test_one_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["me"] = loop
    assert problem("x", loop) == "protect: x is too deep, or contains itself"
