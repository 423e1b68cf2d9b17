"""Pure pieces of the API server, as tables of what goes in and what comes out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onward.local.api import clock, fieldsets, jsonpath, labelselectors, regexps, scalars, strategic, zeros
from onward.local.api.decoding import Malformed, conform, parse_json
from onward.local.api.fieldsets import compare, members, read, shown, write
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
    assert labelselectors.parse(text)(labels) is good


@pytest.mark.parametrize("text", ["=", "a in b", "a in (", "a,,b", "n>x", "a b", "!!a", "-a=b", "(a)"])
def test_bad_selectors_are_refused(text: str) -> None:
    with pytest.raises(ApiError):
        labelselectors.parse(text)


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
    assert _names(after) == ["b", "c", "d", "a"]
    assert after["spec"]["containers"][3]["image"] == "2"
    assert _names(pod) == list("abcd"), "the argument stays as it was"
    gone = strategic.merge(POD, pod, {"spec": {"containers": [{"name": "b", "$patch": "delete"}]}})
    assert _names(gone) == ["a", "c", "d"]
    finalizers = {"metadata": {"finalizers": ["x", "y"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}}
    assert strategic.merge(POD, finalizers, patch)["metadata"]["finalizers"] == ["z", "y"]
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic.merge(POD, pod, {"spec": {"containers": [{"image": "x"}]}})


def test_field_sets_are_written_and_read_back() -> None:
    port = {"containerPort": 80}
    pod = {
        "metadata": {"finalizers": ["a/b"], "labels": {"x": "y"}},
        "spec": {"containers": [{"name": "c", "ports": [port]}]},
    }
    found = members(POD, pod)
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
    left = fieldsets.remove(POD, merged, {("f:spec", "f:containers", 'k:{"name":"a"}')})
    assert _names(left) == ["b", "c"]


def test_what_comes_and_goes_as_a_whole_is_told_from_what_changes() -> None:
    old = {"metadata": {"labels": {"a": "1"}}, "spec": {"nodeName": "x"}}
    new = {"metadata": {"labels": {"a": "2"}, "annotations": {"n": "1"}}, "spec": {}}
    found = compare(POD, old, new)
    assert found.added == {("f:metadata", "f:annotations"), ("f:metadata", "f:annotations", "f:n")}
    assert found.changed == {("f:metadata", "f:labels", "f:a")}
    assert found.removed == {("f:spec", "f:nodeName")}
    assert write(found.added) == {"f:metadata": {"f:annotations": {".": {}, "f:n": {}}}}


def test_an_empty_object_shows_its_structs() -> None:
    assert zeros.zero(POD) == {"metadata": {}, "spec": {"containers": None}, "status": {}}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    zeros.complete(POD.fields["status"].schema, status)
    wanted = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
    assert status["conditions"] == [wanted]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("0.5", "500m"), ("1024Mi", "1Gi"), (1000000, "1M"), ("1500", "1500"), ("100m", "100m"), ("1.5Gi", "1536Mi"),
     ("0.5Ki", "512"), ("1e3", "1e3"), ("12e6", "12e6"), ("0", "0"), ("-2", "-2"), ("1000Ki", "1000Ki"),
     ("0.0001", "100u")],
)  # fmt: skip
def test_quantities_are_kept_in_one_form(given: Any, kept: str) -> None:
    assert scalars.quantity(given) == kept


@pytest.mark.parametrize("given", ["", "1Q", "lots", "1 Gi", True, None, [1], "1e999", "9" * 200])
def test_what_is_no_quantity_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        scalars.quantity(given)


def test_times_are_read_strictly_and_kept_in_utc() -> None:
    assert scalars.moment("2026-01-01T01:00:00.5+01:00", micro=False) == "2026-01-01T00:00:00Z"
    assert scalars.moment("2026-01-01T00:00:00.000001Z", micro=True) == "2026-01-01T00:00:00.000001Z"
    for bad in ("yesterday", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00"):
        with pytest.raises(ValueError, match="parsing time"):
            scalars.moment(bad, micro=False)
    with pytest.raises(ValueError, match="parsing time"):
        scalars.moment("2026-01-01T00:00:00Z", micro=True)  # six digits are wanted, as on a real server


@pytest.mark.parametrize(
    ("pattern", "text", "good"),
    [("^[a-z]+$", "abc", True), ("^[a-z]+$", "abc\n", False), (r"^\d+$", "\u0663", False),
     ("[[:alpha:]]{2}", "x1y2zz", True),
     (r"\Qa.b\E", "a.b", True), (r"\Qa.b\E", "axb", False), (r"^a\z", "a", True), ("(?<n>a)b", "ab", True),
     (r"[\]$]", "$", True), ("(?i)ABC", "abc", True)],
)  # fmt: skip
def test_patterns_mean_what_they_mean_on_a_real_server(pattern: str, text: str, good: bool) -> None:
    assert bool(regexps.compiled(pattern).search(text)) is good


@pytest.mark.parametrize("pattern", ["(?=a)", "(?!a)", "(?<=a)b", r"(a)\1", "a++", r"\p{Greek}", "[", "(?P=n)"])
def test_patterns_that_a_real_server_does_not_know_are_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        regexps.compiled(pattern)


@pytest.mark.parametrize(
    ("raw", "why"),
    [("", "unexpected end of JSON input"), ('{"a":', "unexpected end of JSON input"),
     ("{a}", "invalid character 'a' looking"),
     ('{"a" 1}', "invalid character '1' after object key"), ("[1 2]", "invalid character '2' after array element"),
     ('{"a":1 "b":2}', "after object key:value pair"), ("{} x", "invalid character 'x' after top-level value")],
)  # fmt: skip
def test_what_is_wrong_with_json_is_said_in_the_known_words(raw: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parse_json(raw.encode())


def test_keys_that_come_twice_are_told() -> None:
    body = parse_json(b'{"metadata":{"name":"a"},"metadata":{"name":"b","labels":{"x":"1","x":"2"}}}')
    clean, complaints = conform(POD, body)
    assert clean == {"metadata": {"name": "b", "labels": {"x": "2"}}}
    assert complaints == ['duplicate field "metadata.labels.x"', 'duplicate field "metadata"']


def test_decoding_leaves_out_what_the_server_would() -> None:
    body = {"metadata": {"name": "x", "labels": {}}, "spec": {"hostNetwork": False, "nodeName": "", "containers": None,
            "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}], "oops": 1}}  # fmt: skip
    clean, unknown = conform(POD, body)
    assert clean == {
        "metadata": {"name": "x"},
        "spec": {"terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}]},
    }
    assert unknown == ['unknown field "spec.oops"']


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
