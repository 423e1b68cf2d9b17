"""Everything a launcher is told (the command line fills it, `cli.flags`), and what its logic needs of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from onward.core.membership import Member
from onward.core.policy import Policy
from onward.core.published import Rules
from onward.wire.messages import Injection


class Streams(IntFlag):
    """Which standard streams of a rank something applies to; torchrun writes them as 0..3."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True)
class RunSettings:
    """Everything `onward run` was told, checked."""

    script: str  # path of the script, name of the module, or program, as `launch` says
    script_args: tuple[str, ...]  # what belongs to the script, untouched
    launch: str  # "script", "module" (as python -m) or "program" (executed directly, --no-python)
    nproc: int  # ranks on this node
    min_nodes: int  # the job runs with at least so many nodes
    max_nodes: int  # and with at most so many
    nodes: int  # places of the job; agents beyond it stand by
    several: bool  # there may be other nodes, so that this one has to meet them
    node_rank: int  # which of the nodes this one is, -1: any
    standby: bool  # this node only replaces a lost one
    manager: str  # where `onward manager` listens, HOST:PORT or a list; empty: one of the nodes starts it
    manager_port: int  # where this node would start one, were it the next to; 0: any port
    master_addr: str  # where rank 0's node can be reached
    master_port: int | None  # None: any free port
    local_addr: str | None  # this node's own address; None: found out
    standalone: bool  # one node, nobody to meet
    rdzv_endpoint: str  # where the nodes of the job meet, HOST or HOST:PORT, or a list; empty: not told
    rdzv_id: str  # the ranks see it as TORCHELASTIC_RUN_ID
    job_name: str  # names directories and messages; the rdzv id unless told otherwise, empty when neither was given
    role: str  # torchrun's name for this kind of rank, shown and passed on
    max_restarts: int  # restarts of processes in this container before the job fails
    policies: tuple[Policy, ...]  # the ladder, cheapest first
    retry_on: tuple[str, ...]  # regular expressions of further errors that a retry cures
    spares: str  # parked replacements: "none", "one" for all ranks, or "each" rank its own
    warm: bool  # fork ranks from a parent that has imported torch
    preload: tuple[str, ...]  # modules the warm parent imports besides torch
    hang_floor_s: float  # a rank is never called hung sooner than this
    sub_healthy: str  # what is done about a node that is worse than it should be: ignore or hotSwitch
    node_timeout_s: float  # a node is never called lost sooner than this, unless its death is certain
    fail_stop_s: float  # after so long silence counts as death, by the user's word; 0: it never does
    reschedule_s: float  # how long a replacement for a lost node is waited for
    join_timeout_s: float  # how long the job may wait for its nodes at the start
    rules: Rules  # how published faults are taken
    grace_s: float  # between SIGTERM and SIGKILL
    signals: tuple[str, ...]  # signals that end the job in order
    dump_dir: Path | None  # where a dump goes when the script names no directory; None: beside the logs
    log_dir: Path | None  # where the logs of the ranks go; None: the launcher chooses
    redirects: Mapping[int, Streams]  # by local rank: streams that go to the log only
    tee: Mapping[int, Streams]  # by local rank: streams that go to the log and to the screen
    shown_ranks: frozenset[int] | None  # local ranks whose output is shown; None: all
    virtual_local_rank: bool  # each rank sees one device and LOCAL_RANK 0
    chaos: tuple[str, ...]  # faults to inject, as given
    token_file: Path | None  # shared secret for the wire where it leaves the machine
    join_token: str  # the same, given directly
    view: str  # "live" (redrawn), "plain" (lines) or "auto" (live on a terminal)
    output: str  # "text" or "json", for the summary at the end
    quiet: bool  # nothing but the ranks' own output and errors
    pod: str  # the uid of the pod that this runs in; empty: in none
    ignored: tuple[str, ...]  # torchrun's flags that were given and have no meaning here

    @property
    def name(self) -> str:
        """What people call the job: as they were told to, else by what it runs."""
        if self.job_name or self.launch == "module":
            return self.job_name or self.script
        path = Path(self.script).absolute()
        if path.name == "__main__.py" or path.is_dir():
            path = path.resolve().parent if path.name == "__main__.py" else path.resolve()
            return path.name or "job"
        return path.stem or "job"


@dataclass(frozen=True)
class AgentSettings:
    """What the agent's logic is told at its start."""

    member: Member
    local_ranks: int
    spares: str = "each"
    elastic: bool = False
    retry_on: tuple[str, ...] = ()
    injections: tuple[Injection, ...] = ()
    software: str = ""  # what ranks run with here, by version
    memory_dir: str = ""
    dump_dir: str = ""
