"""`onward fault report|clear|list`: what others have found wrong with a job's nodes, told to its manager."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from onward.agent.control import Control
from onward.cli.jobs import choose
from onward.cli.report import as_json
from onward.core.intake import Notice
from onward.core.published import Published, in_words
from onward.errors import OnwardError, UsageError


def fault(name: str | None, output: str, **words: Any) -> int:
    """Pass the words on as they are: the manager knows the job, and tells all that is wrong with them at once."""
    job = choose(name)
    control = Control(job)
    try:
        reply = control.fault(Notice(**words))
    finally:
        control.close()
    answer = reply.answer
    if answer is None:
        raise OnwardError(f"job {job.job}: {reply.error}")
    if answer.problems:
        raise UsageError(answer.problems)
    if output == "json":
        print(as_json({"said": answer.said, "faults": [asdict(f) for f in answer.faults]}))
    elif words["op"] == "list":
        print("\n".join(_table(answer.faults)))
    else:
        print("\n".join(answer.said))
    return 0


def _table(faults: list[Published]) -> list[str]:
    if not faults:
        return ["no fault is published for this job"]
    rows: list[tuple[str, ...]] = [("ID", "LEVEL", "CODE", "WHERE", "SINCE", "LASTS", "TEXT")]
    rows += [_row(f, time.time()) for f in faults]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(f: Published, now: float) -> tuple[str, ...]:
    since = time.strftime("%H:%M:%S", time.localtime(f.since))
    lasts = "done" if f.done else in_words(max(1, round(f.until - now))) if f.until else "until cleared"
    return (str(f.id), f.level.value, f.code, f.where, since, lasts, f.text)
