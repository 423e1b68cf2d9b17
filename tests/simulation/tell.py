"""What a test says of a history that went wrong."""

from __future__ import annotations

from .world import Outcome, World

LAST_LINES = 40
ENDS = ("Succeeded", "Failed", "NoQuorum", "Lost")  # the last two: no majority is left, or nobody at all


def explain(outcome: Outcome) -> str:
    """The end of the story, and how to see all of it."""
    told = World(outcome.seed, trace=True).run()
    lines = "\n".join((told.trace or [])[-LAST_LINES:])
    return (
        f"seed {outcome.seed}: {outcome.broken}\n{lines}\n{outcome.scenario}\n"
        f"replay: python -m tests.simulation {outcome.seed} --trace\n"
        f"or:     python -m pytest tests/simulation -k replay --seed {outcome.seed}"
    )
