"""Whatever stands in an object: it is read or refused, and what was read can be made into pods."""

from __future__ import annotations

import copy
from typing import Any

from acjobs import job, role, seed
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api import ascendjob, fields, pods, ranktable
from onward.api.crds import crds
from onward.api.job import Job

WORDS = [
    "ascend",
    "name",
    "value",
    "nvidia.com/gpu",
    "9601",
    "Never",
    "on",
    "pytorch",
    "mindspore",
    "env",
    "x" * 70,
    "",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 20001) | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [above] if above else []
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += paths(each, (*above, key))
    return found


STARTS = [
    seed(),
    job("mindspore"),
    job(Master=role(container={"env": [{"name": "A", "value": "b"}]}), Worker=role(2, 4)),
]
PLACES = [(start, path) for start in STARTS for path in paths(start)]
AGAINST = next(crd for crd in crds() if crd["spec"]["names"]["kind"] == "AscendJob")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), anything), min_size=1, max_size=3))
def test_any_change_of_a_job_is_answered(changes: list[tuple[tuple[dict[str, Any], tuple[Any, ...]], Any]]) -> None:
    obj = copy.deepcopy(changes[0][0][0])
    for (_, path), value in changes:
        target: Any = obj
        for key in path[:-1]:
            try:
                target = target[key]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if isinstance(target, dict):
                target[path[-1]] = copy.deepcopy(value)
    assert all(problem.message for problem in fields.check(AGAINST, obj))
    read = ascendjob.read(obj)
    if not isinstance(read, Job):
        assert read
        assert all(problem.reason and problem.message for problem in read)
        return
    made = [pods.pod(read, replica.name, 0) for replica in read.replicas if replica.count]
    assert all(pods.place_of(pod) is not None for pod in made)
    assert pods.pod_group(read)["spec"]["minMember"] >= min(1, read.total)
    service = pods.service(read)
    assert service is None or all(1 <= port["port"] <= 65535 for port in service["spec"]["ports"])
    assert ranktable.rank_table(read, made)
    ranktable.wants_file(read)


names = st.text("abcxyz", min_size=3, max_size=8).map(lambda name: f"their{name}")
theirs = st.dictionaries(names, anything, max_size=3)


@settings(max_examples=60, deadline=None)
@given(theirs, theirs, st.dictionaries(st.sampled_from(["a.dev/x", "team"]), st.sampled_from(["1", "on", ""])))
def test_nothing_foreign_is_written_and_user_fields_survive(
    of_pod: dict[str, Any], of_container: dict[str, Any], marks: dict[str, str]
) -> None:
    """Also fields of which nobody has heard yet. (What is in the cluster and not ours: `tests/operator`.)"""
    given_job = job(Master=role(container=of_container))
    template = given_job["spec"]["replicaSpecs"]["Master"]["template"]
    template["spec"] |= of_pod
    template.setdefault("metadata", {})["annotations"] = dict(marks)
    before = copy.deepcopy(given_job)
    read = ascendjob.read(given_job)
    assert isinstance(read, Job)
    pod = pods.pod(read, "Master", 0)
    assert given_job == before, "the user's object is for reading"
    assert {k: pod["spec"][k] for k in of_pod} == of_pod
    assert {k: pod["spec"]["containers"][0][k] for k in of_container} == of_container
    assert {k: pod["metadata"]["annotations"][k] for k in marks} == marks
