"""Objects over plain HTTP: what every client relies on."""

from __future__ import annotations

from apiserver import ApiProcess, pod


def test_create_get_list_update_delete(api: ApiProcess, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}/configmaps"
    made = api.ok("POST", base, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    made["data"]["x"] = "2"
    changed = api.ok("PUT", f"{base}/a", made)
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    code, answer = api.call("PUT", f"{base}/a", made)
    assert (code, answer["reason"]) == (409, "Conflict")
    assert "a" in [each["metadata"]["name"] for each in api.ok("GET", base)["items"]]
    assert api.ok("DELETE", f"{base}/a")["status"] == "Success"
    assert api.call("GET", f"{base}/a")[0] == 404


def test_merge_patch_and_no_op_keeps_the_version(api: ApiProcess, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}/configmaps"
    api.ok("POST", base, {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})
    patch = "application/merge-patch+json"
    first = api.ok("PATCH", f"{base}/a", {"data": {"x": None, "z": "3"}}, patch)
    assert first["data"] == {"y": "2", "z": "3"}
    assert api.ok("PATCH", f"{base}/a", {"data": {"z": "3"}}, patch) == first


def test_watch_resumes_and_follows(api: ApiProcess, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}/pods"
    start = api.ok("GET", base)["metadata"]["resourceVersion"]
    api.ok("POST", base, pod("one"))
    api.ok("PATCH", f"{base}/one", {"metadata": {"labels": {"app": "two"}}}, "application/merge-patch+json")
    api.ok("DELETE", f"{base}/one")
    events = list(api.watch(f"{base}?watch=1&resourceVersion={start}&timeoutSeconds=1"))
    assert [each["type"] for each in events] == ["ADDED", "MODIFIED", "DELETED"]
    chosen = f"{base}?watch=1&resourceVersion={start}&timeoutSeconds=1&labelSelector=app%3Done"
    assert [each["type"] for each in api.watch(chosen)] == ["ADDED", "DELETED"]
