"""A job in a cluster, as `decide` sees it, and what a plan comes to."""

from __future__ import annotations

from dataclasses import replace

from test_losses import NODES, SEEN

from onward.core.jobs import DropPod, Gang, MakePod, Plan, Seen, Word

NOW = 1000.0
GANG = Gang("Running")
RUNNING = Word("Running", "JobRunning", "Job ns/job is running.")
CREATED = Word("Created", "JobCreated", "Job ns/job is created.")
GOING = replace(SEEN, gang=GANG, word=RUNNING, record=replace(SEEN.record, started_at=900.0, told=1))
NEW = Seen(nodes=NODES)


def made(plan: Plan) -> list[tuple[str, int]]:
    return [w.place for w in plan.writes if isinstance(w, MakePod)]


def dropped(plan: Plan) -> list[str]:
    return [w.name for w in plan.writes if isinstance(w, DropPod)]


def state(plan: Plan) -> tuple[str, str]:
    assert plan.word is not None
    return plan.word.type, plan.word.reason
