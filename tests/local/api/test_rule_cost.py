"""CEL rules that would keep the server from everybody else are not worked out."""

from __future__ import annotations

import pytest

from onward.local.api import rules

THREE = "self.l.all(a, self.l.all(b, self.l.exists(c, a + b + c > 0)))"


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("self.a > 0", 0),
        ("self.l.all(a, a > 0) && self.m.exists(b, (b > 0))", 1),
        ("self.l.filter(a, a > 0).map(b, b * 2).all(c, c > 0)", 1),
        ("self.l.all(a, self.l.exists(b, b == a))", 2),
        (THREE, 3),
        ("self.s == 'x.all(y.all(z.all('", 0),
    ],
)
def test_loops_in_loops_are_counted(text: str, loops: int) -> None:
    assert rules._loops(text) == loops


def test_what_is_too_much_depends_on_the_lists() -> None:
    assert not rules.too_much(THREE, {"l": list(range(90))})
    assert rules.too_much(THREE, {"l": list(range(110))})
    assert rules.too_much("self.l.all(a, self.l.exists(b, a == b))", {"deep": [{"l": list(range(1100))}]})
    assert not rules.too_much("self.l.all(a, a > 0)", {"l": list(range(100_000))})


@pytest.mark.skipif(rules.library() is None, reason=rules.MISSING)
def test_it_is_refused_in_the_words_of_a_real_server() -> None:
    schema = {"x-kubernetes-validations": [{"rule": "self.l.size() > 2000"}, {"rule": THREE}, {"rule": "false"}]}
    found = [cause.text() for cause in rules.check(schema, {"l": list(range(1000))}, "spec", None)]
    assert found == ["spec: Invalid value: failed rule: self.l.size() > 2000", f"spec: Invalid value: {rules.BUDGET}"]
