"""Good objects with something odd put in, sent in every way: the answer is never a failure of the server's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver import ApiProcess

from onward.local.api.registry import Registry, Resource

HERE = Path(__file__).parent
SAMPLES: dict[str, Any] = yaml.safe_load((HERE / "samples.yaml").read_text(encoding="utf-8"))
RESOURCES = [each for each in Registry().all() if "get" in each.verbs]
PATCHES = ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")
ODD = (
    "null", "0", "-1", "1.5", "true", '""', '"x"', '"-1"', "[]", "{}", "[null]", '{"a":null}', "[{}]", "[[]]",
    '"a/b/c"', "1099511627776", '"\\u00e9"', '{"":""}', '["x"]', '{"x":["y"]}', '"1Gi"', '"%%"', "1e300",
)  # fmt: skip
SCHEMA = {
    "type": "object", "required": ["spec"],
    "properties": {"spec": {
        "type": "object", "x-kubernetes-validations": [{"rule": "self.n <= 5", "message": "too many"}],
        "properties": {
            "n": {"type": "integer", "minimum": 0, "default": 1},
            "mode": {"type": "string", "enum": ["a"], "pattern": "a"},
            "list": {
                "type": "array", "maxItems": 3, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
            },
            "any": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
        }}},
}  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in children for found in [(*path, key), *_places(child, (*path, key))]]


def _odd(chance: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A copy with one to three places changed, added or taken away."""
    body = json.loads(json.dumps(body))
    for _ in range(chance.randint(1, 3)):
        places = _places(body)
        if not places:
            break
        *steps, last = chance.choice(places)
        place = body
        for step in steps:
            place = place[step]
        how = chance.random()
        if how < 0.6:
            place[last] = json.loads(chance.choice(ODD))
        elif isinstance(place, dict) and how < 0.8:
            place[chance.choice(["", "x", "name", "spec", "status", "metadata"])] = json.loads(chance.choice(ODD))
        elif isinstance(place, dict):
            del place[last]
    return body


def _target(chance: random.Random, namespace: str) -> tuple[str, str, dict[str, Any]]:
    resource: Resource = chance.choice(RESOURCES)
    base = f"/apis/{resource.group}/v1" if resource.group else "/api/v1"
    if chance.random() < 0.2:
        group, name = f"{namespace}.example.com", f"odds.{namespace}.example.com"
        versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}]
        spec = {"group": group, "scope": "Namespaced", "names": {"plural": "odds", "kind": "Odd"}, "versions": versions}
        if chance.random() < 0.5:
            custom = {"n": 2, "mode": "a", "list": [{"k": "x"}], "any": 1}
            body = {"apiVersion": f"{group}/v1", "kind": "Odd", "metadata": {"name": "o"}, "spec": custom}
            return f"/apis/{group}/v1/namespaces/{namespace}/odds", "o", body
        return (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            name,
            {"metadata": {"name": name}, "spec": spec},
        )
    key = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    name = f"odd-{namespace}"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}
    meta = {"name": name, "labels": {"a": "b"}, "annotations": {"x": "y"}, "ownerReferences": [owner]}
    body = {"metadata": meta, **json.loads(json.dumps(SAMPLES[key]).replace("NAMESPACE", namespace))}
    where = f"{base}/namespaces/{namespace}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    return where, name, body


def _storm(api: ApiProcess, namespace: str, seed: int, requests: int) -> None:
    chance = random.Random(seed)
    before = (api.state / "server.log").read_text(encoding="utf-8")
    answered: dict[int, int] = {}
    for number in range(requests):
        where, name, good = _target(chance, namespace)
        body = good if chance.random() < 0.2 else _odd(chance, good)
        kind = f"application/{chance.choice(PATCHES)}"
        how = chance.random()
        if how < 0.5:
            code, answer = api.call("POST", where, body)
        elif how < 0.6:
            code, answer = api.call("PUT", f"{where}/{name}", body)
        elif how < 0.9:
            code, answer = api.call("PATCH", f"{where}/{name}?fieldManager=odd&force=true", body, kind)
        else:
            code, answer = api.call("DELETE", f"{where}/{name}", {"gracePeriodSeconds": 0})
        answered[code] = answered.get(code, 0) + 1
        # What cannot be applied is 500 without a reason, as on a real server; our own mistakes have one.
        assert code < 500 or "reason" not in answer, (seed, number, where, body, answer)
        if number % 20 == 0:
            accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
            assert api.raw("GET", where, None, accept)[0] in (200, 404), (seed, number, where)
    api.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/odds.{namespace}.example.com")
    assert {201, 400, 422} <= set(answered), "this reached only a part of the server"
    new = (api.state / "server.log").read_text(encoding="utf-8")[len(before) :]
    assert "Traceback" not in new, new


def test_odd_objects_are_answered(api: ApiProcess, namespace: str) -> None:
    _storm(api, namespace, seed=1, requests=250)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_odd_objects_are_answered(api: ApiProcess, namespace: str, seed: int) -> None:
    _storm(api, namespace, seed, requests=3000)
