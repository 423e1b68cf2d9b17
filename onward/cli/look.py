"""`onward ps` and `onward status`: what runs on this machine, and how it stands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from onward.agent.control import Control, ControlFile, running_jobs
from onward.cli.jobs import age, choose
from onward.cli.live import condition_lines, header, incident_lines, progress, rank_table, standing
from onward.cli.report import as_json, incident_object
from onward.errors import WireError
from onward.wire.control import ControlReply
from onward.wire.view import JobView

PIPE_WIDTH = 120  # where there is no terminal to ask


def ask(job: ControlFile) -> ControlReply:
    control = Control(job)
    try:
        return control.status()
    finally:
        control.close()


def console() -> Console:
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _asked() -> list[tuple[ControlFile, ControlReply | None]]:
    rows: list[tuple[ControlFile, ControlReply | None]] = []
    for job in running_jobs():
        try:
            rows.append((job, ask(job)))
        except WireError:
            rows.append((job, None))
    return rows


def listed_jobs() -> list[dict[str, Any]]:
    """For programs."""
    return [_listed(job, reply) for job, reply in _asked()]


def ps(output: str) -> int:
    """Every job of this user on this machine, one line each."""
    if output == "json":
        print(as_json(listed_jobs()))
        return 0
    rows = _asked()
    if not rows:
        print("no job of yours is running on this machine")
        return 0
    lines: list[tuple[str, ...]] = [("JOB", "PID", "PHASE", "RANKS", "STEP", "INCIDENTS", "GOODPUT", "UP", "LOGS")]
    lines += [_row(job, reply.view if reply is not None else None) for job, reply in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _row(job: ControlFile, view: JobView | None) -> tuple[str, ...]:
    if view is None:
        return (job.job, str(job.pid), "does not answer", str(job.world_size), "-", "-", "-", age(job), job.log_dir)
    step = f"{view.step}/{view.total_steps}" if view.total_steps else str(view.step) if view.library else "-"
    facts = (view.phase, str(len(view.ranks)), step, str(view.incidents), f"{view.goodput:.1%}")
    return (job.job, str(job.pid), *facts, age(job), job.log_dir)


def _listed(job: ControlFile, reply: ControlReply | None) -> dict[str, Any]:
    view = reply.view if reply is not None else None
    return {
        "job": job.job,
        "pid": job.pid,
        "script": job.script,
        "started_at": job.started_at,
        "log_dir": job.log_dir,
        "view": asdict(view) if view is not None else None,
    }


def status(name: str | None, output: str) -> int:
    """One job, in full."""
    job = choose(name)
    reply = ask(job)
    view = reply.view
    assert view is not None
    if output == "json":
        found = _listed(job, reply)
        found["incidents"] = [incident_object(i) for i in reply.incidents]
        found["recovering"] = reply.open
        found["chaos"] = [asdict(f) for f in reply.fired]
        print(as_json(found))
        return 0
    closed = reply.incidents[:-1] if reply.open else reply.incidents
    now_open = reply.incidents[-1] if reply.open else None
    rate = 1 / view.step_s if view.step_s > 0 else 0.0
    parts = [header(view), Text(), progress(view, rate), Text(), rank_table(view, len(view.ranks)), Text()]
    parts += [standing(view), *condition_lines(view, len(view.conditions))]
    parts += [*incident_lines(closed, now_open, len(closed) + 1)]
    console().print(Group(*parts, Text(f"\n launcher pid {job.pid}, logs in {job.log_dir}")))
    return 0
