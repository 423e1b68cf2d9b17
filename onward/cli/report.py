"""The end of a run as one JSON object, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from onward.agent.observer import Outcome
from onward.cli.banner import root_cause
from onward.core.incident import Incident


def incident_object(i: Incident) -> dict[str, Any]:
    return {
        "number": i.number,
        "headline": i.headline(),
        "step": i.step,
        "policy": i.policy,
        "why": list(i.why),
        "mended": i.mended,
        "steps_lost": i.lost,
        "total_ms": round(i.total_ms, 1),
        "timeline_ms": {stage: round(ms, 1) for stage, ms in i.timeline_ms()},
        "faults": [{k: v for k, v in asdict(f).items() if k != "at"} for f in i.faults],  # `at` tells them apart
        "evidence": i.evidence,
    }


def outcome_object(outcome: Outcome, oom_killed: bool = False) -> dict[str, Any]:
    return {
        "job": outcome.name,
        "script": outcome.script,
        "outcome": outcome.phase,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
        "steps": outcome.steps,
        "steps_lost": outcome.steps_lost,
        "goodput": round(outcome.goodput, 4),
        "loss": outcome.loss,
        "elapsed_s": round(outcome.elapsed_s, 3),
        "incidents": [incident_object(i) for i in outcome.incidents],
        "conditions": [asdict(c) for c in outcome.conditions],
        "chaos": [asdict(f) for f in outcome.chaos],
        "pids": {str(rank): list(pids) for rank, pids in outcome.pids.items()},
        "refused": outcome.refused,
        "dropped": outcome.dropped,
        "root_cause": root_cause(outcome, oom_killed),
        "log_dir": outcome.log_dir,
    }


def as_json(value: Any) -> str:
    """Indented, and strict: what JSON has no word for, such as a loss of NaN, becomes null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
