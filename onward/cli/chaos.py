"""`onward chaos`: cause a fault in a running job, and wait until somebody other than the injector saw it happen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from onward.agent.chaos import OWN_KINDS, parse_chaos
from onward.agent.control import Control, ControlFile, running_jobs
from onward.agent.witness import UNPROVABLE
from onward.cli.jobs import choose
from onward.cli.story import closing
from onward.errors import OnwardError, UsageError, WireError
from onward.wire.control import ControlReply
from onward.wire.messages import Injection
from onward.wire.view import Fired

POLL_S = 0.05
INCIDENT_S = 15.0  # how long the end of the incident is waited for, once the fault has happened
GONE_S = 5.0  # a dying process closes its sockets before it lets go of its locks


def chaos(words: Sequence[str], wait_s: float) -> int:
    """`words`: perhaps a job, then faults as `kind=kill,rank=2` or a YAML file."""
    names = [word for word in words if "=" not in word and not word.endswith((".yaml", ".yml"))]
    specs = [word for word in words if word not in names]
    problems = []
    if len(names) > 1:
        problems.append(f"more than one job named: {', '.join(names)}; a fault is written as kind=kill,rank=2")
    if not specs:
        problems.append("no fault given; write for example: onward chaos kind=kill,rank=2")
    if problems:
        raise UsageError(problems)
    job = choose(names[0] if names else None)
    try:
        injections = list(parse_chaos(specs, job.world_size))
    except UsageError as e:  # here they are no values of a flag
        raise UsageError([problem.removeprefix("--chaos ") for problem in e.problems]) from e
    control = Control(job)
    try:
        return _carry_out(job, control, injections, wait_s)
    finally:
        control.close()


def _carry_out(job: ControlFile, control: Control, injections: list[Injection], wait_s: float) -> int:
    before = control.status()
    last_incident = max((i.number for i in before.incidents), default=0)
    reply = control.inject(injections)
    if reply.error:
        raise UsageError(f"job {job.job}: {reply.error}")
    for i in injections:
        print(f"ordered: {_words(i)}", flush=True)
    waiting = dict(zip(reply.injected, injections, strict=True))
    deadline = time.monotonic() + wait_s
    try:
        while waiting:
            for fired in reply.fired:
                if fired.id in waiting and (fired.proof or fired.kind in UNPROVABLE):
                    print(f"happened: {_words(waiting.pop(fired.id))}: {_proof(fired)}", flush=True)
            if not waiting or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
            reply = control.status()
    except WireError:
        return _launcher_gone(job, waiting)
    if waiting:
        for i in waiting.values():
            print(f"not seen yet after {wait_s:g} s: {_words(i)}; it stays ordered", flush=True)
        return 1
    if any(i.kind not in OWN_KINDS and i.kind not in UNPROVABLE for i in injections):
        _tell_incident(control, last_incident)
    return 0


def _words(i: Injection) -> str:
    where = "" if i.kind in OWN_KINDS else f" rank {i.rank}"
    step = f" at step {i.step}" if i.step >= 0 else ""
    when = " during the next recovery" if i.at == "recovery" else ""
    return f"{i.kind}{where}{step}{when}"


def _proof(fired: Fired) -> str:
    return fired.proof or f"announced by rank {fired.rank} (pid {fired.pid}); there is nothing else to see"


def _launcher_gone(job: ControlFile, waiting: dict[int, Injection]) -> int:
    """The connection broke: that is the proof for kill-agent, and the end of the job otherwise."""
    gone = _has_gone(job)
    if gone and [i.kind for i in waiting.values()] == ["kill-agent"]:
        print(f"happened: kill-agent: the kernel: launcher pid {job.pid} is gone, and its ranks with it", flush=True)
        return 0
    if gone:
        raise OnwardError(f"job {job.job} has ended before the fault was seen")
    raise OnwardError(f"the launcher of job {job.job} (pid {job.pid}) does not answer any more")


def _has_gone(job: ControlFile) -> bool:
    deadline = time.monotonic() + GONE_S
    while job.pid in [other.pid for other in running_jobs()]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _tell_incident(control: Control, last: int) -> None:
    """Print the incident that follows, when it is over soon."""
    deadline = time.monotonic() + INCIDENT_S
    try:
        while time.monotonic() < deadline:
            reply: ControlReply = control.status()
            new = [i for i in reply.incidents if i.number > last and i.closed_at is not None]
            if new:
                print("\n".join(line for i in new for line in closing(i)), flush=True)
                return
            time.sleep(POLL_S)
    except WireError:
        return
