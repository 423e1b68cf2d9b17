"""docs/local-api.md says what the registry says, and every row of it holds against a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver import ApiProcess

from onward.local.api.discovery import UNSERVED
from onward.local.api.reference import refused, rows
from onward.local.api.registry import Registry, Resource

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "local-api.md"
SAMPLES: dict[str, Any] = yaml.safe_load((HERE / "samples.yaml").read_text(encoding="utf-8"))
RESOURCES = Registry().all()
MERGE = "application/merge-patch+json"


def _id(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def test_the_page_lists_what_is_served() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for line in [*rows(Registry()), *refused(Registry())]:
        assert line in text, (
            f"docs/local-api.md lacks this row; python -m onward.local.api.reference prints them: {line}"
        )


def _places(resource: Resource, namespace: str) -> tuple[str, str]:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return (f"{base}/namespaces/{namespace}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}",
            f"{base}/{resource.plural}")  # fmt: skip


def _sample(resource: Resource, name: str, namespace: str) -> dict[str, Any]:
    body = json.loads(json.dumps(SAMPLES[_id(resource)]).replace("NAMESPACE", namespace))
    body.update(apiVersion=resource.api_version, kind=resource.kind, metadata={"name": name, "labels": {"walk": "yes"}})
    return body


@pytest.mark.parametrize("resource", [each for each in RESOURCES if "get" in each.verbs], ids=_id)
def test_every_verb_of_every_resource(api: ApiProcess, namespace: str, resource: Resource) -> None:
    place, everywhere = _places(resource, namespace)
    name = "walkers.walk.example.com" if "definitions" in resource.plural else f"walk-{namespace}"
    made = api.ok("POST", place, _sample(resource, name, namespace))
    assert (made["kind"], made["apiVersion"]) == (resource.kind, resource.api_version)
    start = made["metadata"]["resourceVersion"]
    read = api.ok("GET", f"{place}/{name}")
    assert read["metadata"]["uid"] == made["metadata"]["uid"]
    listed = api.ok("GET", f"{everywhere}?labelSelector=walk%3Dyes")
    assert listed["kind"] == f"{resource.kind}List"
    assert name in [each["metadata"]["name"] for each in listed["items"]]
    patched = api.ok("PATCH", f"{place}/{name}", {"metadata": {"annotations": {"a": "1"}}}, MERGE)
    patched["metadata"]["annotations"]["a"] = "2"
    updated = api.ok("PUT", f"{place}/{name}", patched)
    assert updated["metadata"]["annotations"]["a"] == "2"
    applied = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"annotations": {"b": "1"}}}
    path = f"{place}/{name}?fieldManager=walk"
    assert api.ok("PATCH", path, applied, "application/apply-patch+yaml")["metadata"]["annotations"] == {
        "a": "2",
        "b": "1",
    }
    _, table, _ = api.raw("GET", place, None, {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    shown = json.loads(table)
    assert all(len(row["cells"]) == len(shown["columnDefinitions"]) for row in shown["rows"])
    for sub in resource.subresources:
        _walk_subresource(api, f"{place}/{name}/{sub}", sub)
    if "deletecollection" in resource.verbs and resource.namespaced:
        api.ok("DELETE", f"{place}?labelSelector=walk%3Dyes", {"gracePeriodSeconds": 0})
    else:
        api.ok("DELETE", f"{place}/{name}")
    events = []
    for event in api.watch(f"{place}?watch=true&resourceVersion={start}&fieldSelector=metadata.name%3D{name}"):
        events.append(event["type"])
        if event["type"] == "DELETED":
            break
    assert events[0] == "MODIFIED"
    assert events[-1] == "DELETED"


def _walk_subresource(api: ApiProcess, path: str, sub: str) -> None:
    if sub in UNSERVED:
        code, answer = api.call("GET", path)
        assert code == 501
        assert "is not supported" in answer["message"]
    elif sub in ("status", "scale"):
        found = api.ok("GET", path)
        assert api.ok("PATCH", path, {"metadata": {"resourceVersion": None}}, MERGE)["kind"] == found["kind"]
        assert api.ok("PUT", path, found)["kind"] == found["kind"]
    elif sub == "log":
        assert api.call("GET", path) == (204, {}), "a pod without a node has said nothing"
    elif sub in ("exec", "attach", "portforward"):
        code, answer = api.call("GET", f"{path}?command=x")
        assert code in (400, 501), "a pod without a node has nobody to ask"
        assert answer["message"]
    elif sub in ("binding", "eviction", "token", "finalize"):
        assert api.call("GET", path)[0] == 405


@pytest.mark.parametrize("resource", [each for each in RESOURCES if each.verbs == ("create",)], ids=_id)
def test_questions_are_answered(api: ApiProcess, namespace: str, resource: Resource) -> None:
    place, _ = _places(resource, namespace)
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}} if "AccessReview" in resource.kind else {}
    body: dict[str, Any] = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
    if resource.plural == "bindings":
        pod = {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
        api.ok("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        body.update(metadata={"name": "b"}, target={"kind": "Node", "name": "n"})
    assert "status" in api.ok("POST", place, body)
    assert api.call("GET", place)[0] == 405


@pytest.mark.parametrize("path", ["/metrics", "/logs", "/logs/kube-apiserver.log", "/debug/pprof/"])
def test_what_stands_beside_the_resources_is_refused(api: ApiProcess, path: str) -> None:
    code, answer = api.call("GET", path)
    assert code == 501
    assert "is not supported" in answer["message"]


@pytest.mark.parametrize("header", ["Impersonate-User", "impersonate-group", "Impersonate-Extra-Scopes"])
def test_nobody_is_silently_taken_for_somebody_else(api: ApiProcess, header: str) -> None:
    for path in ("/api/v1/nodes", "/api", "/version"):
        code, text, _ = api.raw("GET", path, None, {header: "bob"})
        assert code == 501
        assert b"impersonation is not supported" in text


def test_health_in_words(api: ApiProcess) -> None:
    for kind in ("livez", "readyz", "healthz"):
        assert api.raw("GET", f"/{kind}?verbose")[1] == f"[+]ping ok\n[+]etcd ok\n{kind} check passed\n".encode()
        assert api.raw("GET", f"/{kind}/ping")[:2] == (200, b"ok")
        assert api.raw("GET", f"/{kind}/nothing")[0] == 404
    assert b"[+]etcd excluded: ok\n" in api.raw("GET", "/readyz?verbose&exclude=etcd")[1]
