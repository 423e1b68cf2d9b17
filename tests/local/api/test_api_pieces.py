"""Pure pieces of the API server, as tables of what goes in and what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from onward.local.api import clock, fieldsets, jsonpath, selectors, strategic
from onward.local.api.decoding import conform
from onward.local.api.fieldsets import leaves, read, shown, write
from onward.local.api.schema import builtin_types
from onward.local.api.status import ApiError
from onward.local.api.structural import default, validate

POD = builtin_types().kind("core.Pod")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (600, "10m"), (3 * 3600 - 1, "179m"),
     (3 * 3600, "3h"), (3 * 3600 + 60, "3h1m"), (9 * 3600, "9h"), (47 * 3600, "47h"), (50 * 3600, "2d2h"),
     (10 * 86400, "10d"), (800 * 86400, "2y70d"), (-5, "<invalid>")],
)  # fmt: skip
def test_ages_read_as_in_kubectl(seconds: float, text: str) -> None:
    assert clock.duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "good"),
    [("2026-01-02T03:04:05Z", True), ("2026-01-02T03:04:05.123456Z", True), ("2026-01-02T03:04:05.1Z", True),
     ("2026-01-02T03:04:05.123456789+02:00", True), ("2026-01-02", False), ("2026-01-02T03:04:05", False), ("", False)],
)  # fmt: skip
def test_times(text: str, good: bool) -> None:
    assert (clock.parse(text) is not None) == good


TREE = {"a": {"b.c": 1, "l": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]}, "s": ["p", "q", "r"]}


@pytest.mark.parametrize(
    ("path", "value"),
    [(".a.l[0].v", 1), (".a.l[-1].v", 2), (".s[-1:]", "r"), (".s[0:2]", "p,q"), (".a['b.c']", 1), (r".a.b\.c", 1),
     ('.a.l[?(@.n=="y")].v', 2), (".a.l[*].n", "x,y"), (".nothing.here", None), ("{.s[1]}", "q"), ("$.s[9]", None)],
)  # fmt: skip
def test_json_paths_of_columns(path: str, value: Any) -> None:
    assert jsonpath.parse(path).first(TREE) == value


def test_json_paths_that_are_not_supported_are_refused() -> None:
    for text in (".a[", "..a", ".a[?(@.b > 1)]", "a.b"):
        with pytest.raises(jsonpath.BadPath):
            jsonpath.parse(text)


@pytest.mark.parametrize(
    ("text", "labels", "good"),
    [("a=b,c!=d", {"a": "b"}, True), ("a==b", {"a": "c"}, False), ("a in (x, y)", {"a": "y"}, True), ("a", {}, False),
     ("a notin (x)", {}, True), ("!a", {"a": ""}, False), ("n>3", {"n": "4"}, True), ("n<3", {"n": "x"}, False),
     ("a=", {"a": ""}, True), ("example.com/a=b", {"example.com/a": "b"}, True)],
)  # fmt: skip
def test_label_selectors(text: str, labels: dict[str, str], good: bool) -> None:
    assert selectors.parse_labels(text)(labels) is good


@pytest.mark.parametrize("text", ["=", "a in b", "a in (", "a,,b", "n>x", "a b", "!!a", "-a=b", "(a)"])
def test_bad_selectors_are_refused(text: str) -> None:
    with pytest.raises(ApiError):
        selectors.parse_labels(text)


def _names(pod: dict[str, Any]) -> list[str]:
    return [each["name"] for each in pod["spec"]["containers"]]


def test_strategic_patches_keep_and_set_the_order() -> None:
    pod = {"spec": {"containers": [{"name": name, "image": "1"} for name in "abcd"]}}
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "d"}, {"name": "a"}],
            "containers": [{"name": "a", "image": "2"}],
        }
    }
    after = strategic.merge(POD, pod, patch)
    assert _names(after) == ["d", "b", "c", "a"]
    assert after["spec"]["containers"][3]["image"] == "2"
    assert _names(pod) == list("abcd"), "the argument stays as it was"
    gone = strategic.merge(POD, pod, {"spec": {"containers": [{"name": "b", "$patch": "delete"}]}})
    assert _names(gone) == ["a", "c", "d"]
    finalizers = {"metadata": {"finalizers": ["x", "y"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}}
    assert strategic.merge(POD, finalizers, patch)["metadata"]["finalizers"] == ["y", "z"]
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic.merge(POD, pod, {"spec": {"containers": [{"image": "x"}]}})


def test_field_sets_are_written_and_read_back() -> None:
    port = {"containerPort": 80}
    pod = {
        "metadata": {"finalizers": ["a/b"], "labels": {"x": "y"}},
        "spec": {"containers": [{"name": "c", "ports": [port]}]},
    }
    found = set(leaves(POD, pod))
    assert read(write(found)) == found
    assert sorted(map(shown, found)) == [
        '.metadata.finalizers[="a/b"]',
        ".metadata.labels.x",
        '.spec.containers[name="c"]',
        '.spec.containers[name="c"].name',
        '.spec.containers[name="c"].ports[containerPort=80,protocol="TCP"]',
        '.spec.containers[name="c"].ports[containerPort=80,protocol="TCP"].containerPort',
    ]


def test_applied_lists_merge_by_key_and_fields_are_removed_by_path() -> None:
    live = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}
    merged = fieldsets.merge(POD, live, {"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}})
    assert _names(merged) == ["a", "b", "c"]
    assert merged["spec"]["containers"][1]["image"] == "2"
    fieldsets.remove(POD, merged, ("f:spec", "f:containers", 'k:{"name":"a"}'))
    assert _names(merged) == ["b", "c"]


def test_decoding_leaves_out_what_the_server_would() -> None:
    body = {"metadata": {"name": "x", "labels": {}}, "spec": {"hostNetwork": False, "nodeName": "", "containers": None,
            "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}], "oops": 1}}  # fmt: skip
    clean, unknown = conform(POD, body)
    assert clean == {
        "metadata": {"name": "x"},
        "spec": {"terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}]},
    }
    assert unknown == ["spec.oops"]


def test_schemas_default_deeply_and_report_everything() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 3}}},
            "l": {
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "string", "default": "d"}}},
            },
            "m": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}},
        },
    }
    value: dict[str, Any] = {"l": [{}], "m": {"k": "long"}}
    default(schema, value)
    assert (value["a"], value["l"]) == ({"b": 3}, [{"x": "d"}])
    value["a"]["b"] = "three"
    assert [cause.field for cause in validate(schema, value)] == ["a.b", "m.k"]
