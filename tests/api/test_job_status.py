"""Conditions and counts: the tables of the seed, and that the last condition is always one of the five states."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from acjobs import EXAMPLES, good, job, role

from onward.api import pods, status
from onward.api.job import Problem
from onward.api.status import Condition

STATES = {name: Condition(name, f"{name}Reason", name) for name in status.STATES}
RECOVERING = Condition(status.RECOVERING, "recover-in-place", "rank 1 died")


def told(*names: str) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        conditions = status.update(conditions, STATES[name], (), f"t{at}")
    return conditions


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Created"], [("Created", "True")]),
        (["Created", "Running"], [("Created", "True"), ("Running", "True")]),
        (["Created", "Running", "Restarting"], [("Created", "True"), ("Restarting", "True")]),
        (["Created", "Running", "Restarting", "Running"], [("Created", "True"), ("Running", "True")]),
        (["Created", "Running", "Succeeded"], [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]),
        (["Created", "Running", "Failed"], [("Created", "True"), ("Running", "False"), ("Failed", "True")]),
        (["Created", "Restarting", "Failed"], [("Created", "True"), ("Restarting", "True"), ("Failed", "True")]),
        (["Failed", "Running"], [("Failed", "True")]),  # it is final
        (["Running", "Succeeded", "Failed"], [("Running", "False"), ("Succeeded", "True")]),
        (["Created", "Running", "Created"], [("Running", "False"), ("Created", "True")]),  # suspended
    ],
)
def test_one_state_after_the_other(names: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(c["type"], c["status"]) for c in told(*names)] == expected


def test_the_last_condition_is_a_state_whatever_happens() -> None:
    for names in itertools.product(status.STATES, repeat=3):
        conditions: list[dict[str, Any]] = []
        for name in names:
            conditions = status.update(conditions, STATES[name], [RECOVERING], "t")
            conditions = status.update(conditions, None, [Condition(status.DEGRADED, "r", "m", "False")], "t")
            types = [c["type"] for c in conditions]
            assert types[-1] in status.STATES
            assert len(set(types)) == len(types)
            assert status.state(conditions) == types[-1]


def test_times() -> None:
    first = status.update([], Condition("Created", "a", "m"), (), "1")
    same = status.update(first, Condition("Created", "a", "m"), (), "2")
    assert same == first
    other = status.update(first, Condition("Created", "b", "m"), (), "3")[0]
    assert (other["lastTransitionTime"], other["lastUpdateTime"]) == ("1", "3")
    off = status.update(first, Condition("Running", "r", "m"), (), "4")
    done = status.update(off, Condition("Succeeded", "s", "m"), (), "5")
    assert [(c["type"], c["lastTransitionTime"]) for c in done] == [
        ("Created", "1"),
        ("Running", "5"),
        ("Succeeded", "5"),
    ]


def test_the_messages_of_the_seed() -> None:
    sample = yaml.safe_load((EXAMPLES / "seeds/fragments/004-status-conditions.yaml").read_text())["status"][
        "conditions"
    ]
    written = [
        Condition("Failed", status.JOB_FAILED, status.failed_pod("default", "test-job")),
        Condition("Restarting", status.JOB_RESTARTING, status.retrying("default", "test-job", 3)),
        Condition("Failed", status.JOB_FAILED, status.backoff_reached("test-job")),
    ]
    assert [status.update([], c, (), "2024-01-01T10:00:00Z")[0] for c in written] == sample


def test_the_reasons_of_the_seed() -> None:
    reasons = [
        status.JOB_FAILED,
        status.JOB_RESTARTING,
        status.SYNC_POD_GROUP_FAILED,
        status.POD_GROUP_NOT_INITIALIZED,
        status.POD_GROUP_PENDING,
        status.SYNC_SERVICE_FAILED,
        status.POD_CREATE_FAILED,
        status.JOB_VALID_FAILED,
    ]
    assert reasons == [
        "JobFailed",
        "jobRestarting",
        "SyncPodGroupFailed",
        "PodGroupNotInitialized",
        "PodGroupPending",
        "SyncServiceFailed",
        "PodCreateFailed",
        "JobValidFailed",
    ]


def test_all_problems_are_in_one_condition() -> None:
    condition = status.invalid([Problem("InvalidFramework", "not set"), Problem("InvalidSpecs", "nothing")])
    assert (condition.type, condition.reason) == ("Failed", "JobValidFailed")
    assert condition.message == "InvalidFramework: not set; InvalidSpecs: nothing"


def test_counts_by_role() -> None:
    read = good(job(Master=role(), Worker=role(4)))

    def pod(role: str, index: int, phase: str, **metadata: Any) -> dict[str, Any]:
        made = pods.pod(read, role, index)
        made["metadata"] |= metadata
        return {**made, "status": {"phase": phase}}

    seen = [
        pod("Master", 0, "Running"),
        pod("Worker", 0, "Running"),
        pod("Worker", 1, "Succeeded"),
        pod("Worker", 2, "Failed"),
        pod("Worker", 3, "Failed", deletionTimestamp="now"),  # it is being replaced
        pod("Worker", 3, "Pending"),
        {"metadata": {"labels": {}}, "status": {"phase": "Running"}},
    ]
    stand_in = pods.pod(read, "Worker", 0, stand_in_for="gpt-worker-0", name="x")
    seen.append({**stand_in, "status": {"phase": "Running"}})
    assert status.replica_statuses(read, seen) == {
        "Master": {"active": 1},
        "Worker": {"active": 1, "succeeded": 1, "failed": 1},
    }
    assert status.replica_statuses(read, seen[:3], over="Succeeded") == {
        "Master": {"succeeded": 1},
        "Worker": {"succeeded": 2},
    }
    assert status.replica_statuses(read, []) == {"Master": {}, "Worker": {}}
