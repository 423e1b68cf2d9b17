"""What is known about a rank, as plain values.

Agents gather these, the manager compares them with what it wants, and every decision in `core` is a function of them.
They describe a *level*, never a change: a repeated or reordered report does no harm, and a manager that starts anew
needs nothing but the latest ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Stage(str, Enum):
    """How far a rank's process has come, in its own words."""

    STARTING = "starting"  # the process exists; the library has not spoken yet
    SETUP = "setup"  # `onward.init()` was called and waits for its first generation
    READY = "ready"  # script run up to its first step; `loadable` says what it could begin from
    PARKED = "parked"  # a replacement or spare: script run up to its first step, waits to be given state
    PAUSED = "paused"  # interrupted, at the fence; `step`, `clean` and `undo` say what it holds
    FORMED = "formed"  # groups of `generation` are built and state is in place
    TRAINING = "training"  # running user code in `generation`
    DONE = "done"  # through the loop, waiting for the others
    AFTER = "after"  # running what comes after the loop: it evaluates, saves, exports
    LEFT = "left"  # its script has ended well; stays until those of all ranks have, since it holds the state
    EXITED = "exited"  # the kernel says so


ENDED_INSIDE = "exit code 0, in a step that did not count"
THROUGH = (Stage.DONE, Stage.AFTER, Stage.LEFT)  # the loop is behind it


class Scope(str, Enum):
    """Where in the user's script a rank was when it paused; only some places can be run again."""

    SETUP = "setup"
    STEP = "step"
    BETWEEN = "between"  # between steps, in our own code
    OUTSIDE = "outside"  # a collective of the user's between steps, or after the last one


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A fault as first seen, before anybody has judged it."""

    # exit, signal, exception, hang, stall, start, node, untold; join: a rank comes back; published: retry, restart
    kind: str
    rank: int
    incarnation: int
    step: int = -1
    text: str = ""  # exception type and message, signal name, or evidence
    traceback: str = ""
    retryable: str = ""  # "", "memory" or "communication": the device table's word for it
    at: float = 0.0  # wall clock seconds, for people
    since_s: float = 0.0  # how long it had gone on before it was seen
    others: int = -1  # of a rank that ended: how many steps the others had done

    @property
    def early(self) -> bool:
        """Its script ended well, before those of the others."""
        return self.kind == "exit" and self.text == "exit code 0"

    @property
    def inside(self) -> bool:
        """Its script ended as if all were well, in a step that did not count."""
        return self.kind == "exit" and self.text == ENDED_INSIDE

    def signature(self) -> tuple[str, int, str]:
        """Equal for two failures that look like the same one at the same place."""
        measured = self.kind in ("hang", "stall", "node")  # their text tells how long, which is never the same twice
        return (self.kind, self.step, "" if measured else self.text[:200])


@dataclass(frozen=True, slots=True)
class Progress:
    """What the rank's status page shows: readable after its death and while it is stopped."""

    step: int = -1
    launched: int = 0  # collectives over the whole world entered so far in this generation
    pending_s: float = 0.0  # age of the oldest collective that has not ended; 0 when none
    beat_s: float = 0.0  # age of the link thread's last sign of life
    stopped_s: float = 0.0  # how long the kernel has shown it as stopped (SIGSTOP)
    idle_s: float = 0.0  # age of the last sign of progress of the main thread, less what it queued for a core
    section: bool = False  # inside `run.section`, or anywhere that slowness is legal
    step_s: float = 0.0  # duration of the last committed step
    gate: bool = False  # waiting at an out-of-band gate
    compute_s: float = 0.0  # what this rank did itself in that step; 0: not known
    queued_s: float = 0.0  # the part of it in which no processor was free
    inside: bool = False  # in its loop, at a step that does not count, or not yet: its script cannot end well here


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Everything the manager needs to know about one rank."""

    rank: int
    node: int
    incarnation: int
    pid: int = 0
    stage: Stage = Stage.STARTING
    generation: int = 0  # that `stage` refers to
    library: bool = False  # the script called `onward.init()`
    step: int = -1  # committed steps in its shared state; -1: holds nothing
    clean: bool = False
    undo: bool = False  # can go back to step-1
    scope: Scope = Scope.SETUP
    local_steps: tuple[int, ...] = ()  # steps whose local state is safe outside the process
    early: tuple[int, ...] = ()  # of these: written when all but the end of the step before it had been run
    begun: int = -1  # last step whose block it began, in this process or in one before it
    resumed: bool = False  # has committed a step in `generation`
    serve: str = ""  # where it serves its state
    between: int = 0  # collectives it has run since its last commit, outside steps
    loadable: tuple[int, ...] = ()  # steps it could begin from, by checkpoints or by the copies in memory
    partly: tuple[int, ...] = ()  # steps of which it has its local state only
    kept: tuple[int, ...] = ()  # steps of which its node holds this rank's local state in memory
    memory: tuple[int, ...] = ()  # steps of which its node holds a complete copy in memory, this rank's part included
    disk: tuple[int, ...] = ()  # checkpoints that its node has published in this run
    save_error: str = ""  # why what was to be saved could not be written
    light: int = 0  # the collective at which all ranks had agreed to publish; 0: its steps are careful ones
    elastic: bool = False  # its script can train on with fewer ranks
    feed: str = ""  # where it tells a stand-in what it does
    follows: str = ""  # of a stand-in: "yes", it keeps up with its rank; "no", it cannot; "", not known yet
    joined: str = ""  # the group of a membership to come that it has connected already
    broke: bool = False  # it left its loop with `break`: what it runs since then follows its last block
    withheld: str = ""  # what in its shared state no other process can be given; empty: nothing
    exit_code: int | None = None  # negative: killed by that signal
    dead_s: float = 0.0  # how long ago its process ended
    fault: FaultReport | None = None  # reported by the rank or by its agent
    progress: Progress = field(default_factory=Progress)

    @property
    def alive(self) -> bool:
        return self.stage is not Stage.EXITED

    @property
    def ended_well(self) -> bool:
        """Its script has come to an end, and not in a step that does not count."""
        return self.exit_code == 0 and not self.progress.inside

    @property
    def ended_at(self) -> int:
        """The steps behind it when its script ended. Its word may be newer than its page, and its page outlives it."""
        return self.step if self.alive else self.progress.step
