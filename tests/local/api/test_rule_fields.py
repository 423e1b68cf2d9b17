"""Fields that CEL rules of a CRD name: looked up when the CRD is created, in a real server's words."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver import ApiProcess

from onward.local.api import rulefields, rules

SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "integer"}}}},
        "a-b": {"type": "integer"},
        "namespace": {"type": "string"},
        "either": {"x-kubernetes-int-or-string": True},
        "whole": {"type": "object", "x-kubernetes-embedded-resource": True},
    },
}
ROOT = {"type": "object", "properties": {"spec": SPEC}}


@pytest.mark.parametrize(
    "rule",
    [
        "self.n > 1 && 'self.nothing' != \"self.nothing\"",
        "self.map.any.x == self.map['other'].x",
        "self.list[0].k == 1 && self.list.all(each, each.unknown == 1)",
        "self.a__dash__b == 1 && self.__namespace__ == 'x'",
        "self.either.x == 1 || self.n.x == 2",
        "self.whole.metadata.name.size() > 0 && self.whole.kind == 'Pod'",
        "has(oldSelf.n) || itself.nothing == 1 || other.self.nothing == 1",
    ],
)
def test_fields_that_exist_or_may(rule: str) -> None:
    assert rulefields.unknown(rule, SPEC, root=False) == ""


@pytest.mark.parametrize(
    ("rule", "errors"),
    [
        ("self.nope == 1", ["1:5: undefined field 'nope'\n | self.nope == 1\n | ....^"]),
        ("has(self.nope)", ["1:4: undefined field 'nope'\n | has(self.nope)\n | ...^"]),
        (
            "self.free.any.thing == 'y' && oldSelf.zzz == 1",
            [
                "1:10: undefined field 'any'\n | self.free.any.thing == 'y' && oldSelf.zzz == 1\n | .........^",
                f"1:38: undefined field 'zzz'\n | self.free.any.thing == 'y' && oldSelf.zzz == 1\n | {'.' * 37}^",
            ],
        ),
        ("self.list[0].nope == 1", ["1:13: undefined field 'nope'\n | self.list[0].nope == 1\n | ............^"]),
        ("self.whole.metadata.labels == 'x'", [f"1:20: undefined field 'labels'\n | {{}}\n | {'.' * 19}^"]),
        ("self.n == 1 &&\n  self.nope == 2", ["2:7: undefined field 'nope'\n |   self.nope == 2\n | ......^"]),
    ],
)
def test_fields_that_do_not_exist(rule: str, errors: list[str]) -> None:
    wanted = "\n".join(f"ERROR: <input>:{each.replace('{}', rule)}" for each in errors)
    assert rulefields.unknown(rule, SPEC, root=False) == wanted


def test_the_root_has_the_fields_of_every_object() -> None:
    assert rulefields.unknown("self.metadata.name == self.kind && self.spec.n == 1", ROOT, root=True) == ""
    assert "undefined field 'labels'" in rulefields.unknown("self.metadata.labels == 1", ROOT, root=True)
    assert "undefined field 'metadata'" in rulefields.unknown("self.metadata.name == 'x'", ROOT, root=False)


def crd(*texts: str) -> dict[str, Any]:
    schema = {**ROOT, "properties": {"spec": {**SPEC, "x-kubernetes-validations": [{"rule": text} for text in texts]}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "ruled", "kind": "Ruled"}
    spec = {"group": "rules.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ruled.rules.example.com"},
        "spec": spec,
    }


def test_such_a_definition_is_refused_and_names_are_spelled_as_in_rules(api: ApiProcess, namespace: str) -> None:
    place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    code, answer = api.call("POST", place, crd("self.nope == 1", "self.n == 1", "has(self.no)"))
    assert code == 422
    fields = [cause["field"].rpartition("[")[2] for cause in answer["details"]["causes"]]
    assert fields == ["0].rule", "2].rule"]
    api.ok("POST", place, crd("self.a__dash__b < 5", "self.__namespace__ == 'x'"))
    try:
        if rules.library() is None:
            pytest.skip("NO CEL LIBRARY: rules are not evaluated here")
        here = f"/apis/rules.example.com/v1/namespaces/{namespace}/ruled"
        body = {"apiVersion": "rules.example.com/v1", "kind": "Ruled", "metadata": {"name": "r"}}
        api.ok("POST", here, {**body, "spec": {"a-b": 4, "namespace": "x"}})
        bad = {**body, "metadata": {"name": "s"}, "spec": {"a-b": 5, "namespace": "x"}}
        code, answer = api.call("POST", here, bad)
        assert code == 422
        assert "failed rule: self.a__dash__b < 5" in answer["message"]
    finally:
        api.ok("DELETE", f"{place}/ruled.rules.example.com")
