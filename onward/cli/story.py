"""Incidents and summaries in words: the same on every screen."""

from __future__ import annotations

from onward.agent.observer import Outcome
from onward.core.incident import Incident


def opening(incident: Incident) -> str:
    """One line: what happened, and what is being done about it."""
    decided = _decisions(incident)
    doing = f"; {decided[0]}" if decided else ""
    return f"incident {incident.number}: {headline(incident)}{doing}"


def headline(incident: Incident) -> str:
    step = max(incident.step, incident.root_cause.step)
    where = f"at step {step}" if step >= 0 else "before the first step"
    return f"{incident.headline()} {where}"


def timeline(incident: Incident) -> str:
    """How long each stage took, in milliseconds."""
    return " · ".join(f"{stage} {ms:.0f}" for stage, ms in incident.timeline_ms())


def closing(incident: Incident) -> list[str]:
    """A small block: the fault, the cure, the time. One line when there was no cure short of starting again."""
    if incident.policy == "exit":
        return [f"incident {incident.number}: {headline(incident)}; {'; '.join(_decisions(incident))}"]
    lines = [f"incident {incident.number} over after {incident.total_ms:.0f} ms: {headline(incident)}"]
    cure = cures(incident)
    if cure:
        lines.append(f"    cure  {cure}")
    lines.append(f"    ms    {timeline(incident)}")
    return lines


def cures(incident: Incident) -> str:
    """What was done."""
    decided = "; ".join(dict.fromkeys(_decisions(incident)))
    return f"{incident.policy}: {decided}" if incident.policy and decided else incident.policy or decided


def _decisions(incident: Incident) -> list[str]:
    """From the last decision on this very fault: earlier ones were about its echo, which can be seen sooner."""
    head = f"{incident.headline()}; "
    about = [n for n, text in enumerate(incident.why) if text.startswith(head)]
    return [text.removeprefix(head) for text in incident.why[about[-1] if about else 0 :]]


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def summary(outcome: Outcome) -> str:
    """One line at the end of a run."""
    parts = [
        counted(outcome.steps, "step"),
        counted(len(outcome.incidents), "incident"),
        f"{counted(outcome.steps_lost, 'step')} lost",
        *([f"goodput {outcome.goodput:.1%}"] if outcome.steps else []),  # of a node that never trained: nothing
        f"{outcome.elapsed_s:.1f} s",
    ]
    return f"{outcome.phase}: {', '.join(parts)}; logs in {outcome.log_dir}"
