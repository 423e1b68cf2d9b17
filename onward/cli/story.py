"""Incidents and summaries in words: the same on every screen."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onward.agent.observer import Outcome
from onward.core.ends import AGAIN
from onward.core.incident import Incident, describe
from onward.core.remedy import NO_STEPS, PUZZLED
from onward.core.words import counted

MOST_CLAUSES = 4


def opening(incident: Incident) -> str:
    """One line: what happened, and what is being done about it."""
    return f"incident {incident.number}: {'; '.join(first_words(incident))}"


def first_words(incident: Incident) -> list[str]:
    """The same in its parts."""
    return [headline(incident), *(clause for text in _decisions(incident)[:1] for clause in text.split("; "))]


def headline(incident: Incident) -> str:
    step = max(incident.step, incident.root_cause.step)
    what = incident.headline()
    if step < 0 and any(NO_STEPS in why for why in incident.why):
        return what  # there may be no steps at all
    where = f"at step {step}" if step >= 0 else "before the first step"
    return f"{what}, {where}" if ", and " in what else f"{what} {where}"


def timeline(incident: Incident) -> str:
    """How long each stage took, in milliseconds."""
    return " · ".join(f"{stage} {ms:.0f}" for stage, ms in incident.timeline_ms())


def closing(incident: Incident, said: Sequence[str] = ()) -> list[str]:
    """A small block: the fault, the cure, the time. One line when nothing cured it.

    `said` are the words of its opening, where that was shown: then that line says only what is new, if anything is.
    """
    if not incident.mended:
        what, every = headline(incident), _clauses(incident)
        new = [c for c in every if c not in said][-2:] if said else _shortened(every)
        told = [*([what] if what not in said else []), *new]
        return [f"incident {incident.number}: {'; '.join(told)}"] if told else []
    lines = [f"incident {incident.number} over after {incident.total_ms:.0f} ms: {headline(incident)}"]
    cure = cures(incident)
    if cure:
        lines.append(f"    cure  {cure}")
    lines.append(f"    ms    {timeline(incident)}")
    return lines


def cures(incident: Incident) -> str:
    """What was done."""
    decided = "; ".join([*_shortened(_clauses(incident)), *([lost(incident)] if lost(incident) else [])])
    return f"{incident.policy}: {decided}" if incident.policy and decided else incident.policy or decided


def lost(incident: Incident) -> str:
    """How many steps it has cost; empty where that is not known, and where steps are redone in place."""
    again = incident.policy in ("dump", "reload", "exit")
    return f"{counted(incident.lost, 'step')} lost" if incident.lost or (again and incident.lost == 0) else ""


def _decisions(incident: Incident) -> list[str]:
    """From the first decision on this very fault: earlier ones were about its echo, which can be seen sooner."""
    root = incident.root_cause
    head = re.compile(re.escape(f"rank {root.rank} {describe(root)}") + r"(?:, and .*?)?; ")
    about = [n for n, text in enumerate(incident.why) if head.match(text)]
    return [head.sub("", text, count=1) for text in incident.why[about[0] if about else 0 :]]


def _clauses(incident: Incident) -> list[str]:
    """Everything that was decided, each once (the last time), less what turned out not to be the end of it."""
    every = [clause for text in _decisions(incident) for clause in text.split("; ")]
    each = list(dict.fromkeys(reversed(every)))[::-1]
    return [c for c in each if c != PUZZLED or c == every[-1]]


def _shortened(clauses: list[str]) -> list[str]:
    """How it began and how it ended: nobody reads ten clauses, and all of them are in incidents.jsonl.

    Where all had to start again the end begins with the reason.
    """
    everybody = rf"{AGAIN} (all \d+ ranks|the \d+ ranks that are here|rank 0)$"
    again = next((n for n, c in enumerate(clauses) if re.match(everybody, c)), len(clauses))
    end = max(1, min(again - 1, len(clauses) - 2))
    left = end - 1
    if len(clauses) <= MOST_CLAUSES or not left:
        return clauses
    return [clauses[0], f"{counted(left, 'more decision')}", *clauses[end:]]


def summary(outcome: Outcome) -> str:
    """One line at the end of a run."""
    made, incidents = counted(outcome.steps, "step"), counted(len(outcome.incidents), "incident")
    what = [made, incidents, f"{counted(outcome.steps_lost, 'step')} lost", f"goodput {outcome.goodput:.1%}"]
    known = outcome.steps or outcome.steps_lost  # not of a script without the library, nor of a node that never trained
    parts = [*(what if known else [incidents]), f"{outcome.elapsed_s:.1f} s"]
    return f"{outcome.phase}: {', '.join(parts)}; logs in {outcome.log_dir}"
