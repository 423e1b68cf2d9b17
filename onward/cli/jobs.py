"""Finding the job that a command is about, among those that run on this machine."""

from __future__ import annotations

import time

from onward.agent.control import ControlFile, running_jobs
from onward.core.policy import did_you_mean
from onward.errors import UsageError


def describe(job: ControlFile) -> str:
    return f"{job.job} (pid {job.pid}, {job.script}, up {age(job)})"


def age(job: ControlFile) -> str:
    seconds = max(0, int(time.time() - job.started_at))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def choose(name: str | None) -> ControlFile:
    """The job of that name or process number; the only one there is when no name is given."""
    jobs = running_jobs()
    if not jobs:
        raise UsageError("no job of yours is running on this machine; start one with: onward run ...")
    if name is None:
        if len(jobs) == 1:
            return jobs[0]
        raise UsageError(["several jobs are running; name one, or give the pid of its launcher:", *_listed(jobs)])
    matching = [job for job in jobs if name in (job.job, str(job.pid))]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError([f"several jobs are called {name}; give the pid of the launcher:", *_listed(matching)])
    meant = did_you_mean(name, [job.job for job in jobs])
    raise UsageError([f"no job is called {name}{meant}", "these are running:", *_listed(jobs)])


def _listed(jobs: list[ControlFile]) -> list[str]:
    return [f"  {describe(job)}" for job in jobs]
