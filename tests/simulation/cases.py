"""What once went wrong, as small scenarios. Each was found by a seed; seeds change their meaning, these do not."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from onward.core.policy import Policy

from .scenario import ALL_POLICIES, Fault, Scenario

PLAIN = Scenario(
    world_size=3, nodes=1, steps=6, spares="none", policies=ALL_POLICIES, max_restarts=32767, faults=[], setup_s=0.05
)


SEVERAL: dict[str, Any] = {
    "world_size": 3,
    "nodes": 3,
    "standbys": (0.0,),
    "policies": (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.EXIT),
}


@dataclass(frozen=True)
class Case:
    """`story` says what used to happen."""

    name: str
    story: str
    scenario: Scenario
    phase: str = "Succeeded"
    attempts: int = 0  # restarts of everybody that are right here
    restarts: int = 12  # of anybody

    def fresh(self) -> Scenario:
        return copy.deepcopy(self.scenario)


def _case(
    name: str,
    story: str,
    *faults: Fault,
    phase: str = "Succeeded",
    attempts: int = 0,
    restarts: int = 12,
    **changes: object,
) -> Case:
    scenario = replace(PLAIN, faults=list(faults), **changes)  # type: ignore[arg-type]
    return Case(name, story, scenario, phase, attempts, restarts)


CASES = (
    _case("orders are lost", "nobody sent them again", nodes=3, loss=0.3),
    _case(
        "a replacement dies before it can speak",
        "taken for a script without the library: everybody started again and all steps were lost",
        Fault("kill", 1, "publish", 3),
        Fault("kill", 1, "boot", replaced=True),
    ),
    _case(
        "a replacement fails to start",
        "the same",
        Fault("kill", 1, "publish", 3),
        Fault("start-fails", 1, "start", replaced=True),
    ),
    _case(
        "a manager with another clock, pausing",
        "deadlines are times of the old manager's clock: they passed at once, or never",
        Fault("kill", 1, "forward", 3),
        Fault("manager-kill", phase="Pausing", journal="kept"),
    ),
    _case(
        "a manager with another clock, forming",
        "the same",
        Fault("kill", 1, "forward", 3),
        Fault("manager-kill", phase="Forming", journal="lost"),
    ),
    _case(
        "a hang between the last collective and the gate",
        "all ranks had entered the same number of collectives, so nobody was to blame",
        Fault("hang", 1, "applied", 3),
        noise=True,
    ),
    _case("a hang in the last step", "who was done did not count as waiting", Fault("hang", 2, "optimizer", 5)),
    _case("a stopped process after the loop", "nobody looked any more", Fault("stop", 2, "finish")),
    _case(
        "a rank dies after the loop, and the others have ended",
        "nobody held the state any more, and all began again from the first step",
        Fault("kill", 1, "teardown"),
        Fault("kill", 1, "teardown", replaced=True),
        final_collective=True,
    ),
    _case("a hang in set-up", "nobody looked yet", Fault("hang", 1, "setup"), attempts=1),
    _case("a stop before the library is there", "a wait without a deadline", Fault("stop", 1, "boot"), attempts=1),
    _case(
        "a replacement hangs while it rehearses",
        "it had declared that it may be slow, so the pause was prolonged for ever",
        Fault("kill", 1, "publish", 3),
        Fault("hang", 1, "rehearse", replaced=True),
        attempts=1,
    ),
    _case(
        "one rank hangs while the group forms",
        "all who waited for it were taken for hung too, and the last copy of the state went with them",
        Fault("kill", 1, "publish", 3),
        Fault("hang", 0, "open", 3),
        attempts=1,  # where the one that hangs is the only one that has the last step
    ),
    _case(
        "a replacement hangs while it is given the state",
        "a parked process always looked as if it had arrived",
        Fault("kill", 1, "publish", 3),
        Fault("hang", 1, "receive", replaced=True),
    ),
    _case(
        "a journal without its last record",
        "of two records of one generation the older was believed, and ranks that had moved on were taken for hung",
        Fault("drop", 0, "entered", 3),
        Fault("manager-kill", phase="Forming", delay_s=0.05, journal="torn"),
    ),
    _case(
        "a manager dies while ranks end",
        "some had ended well, the others waited to be told so",
        Fault("manager-kill", phase="Finishing", delay_s=0.002, journal="lost"),
        nodes=3,
    ),
    _case(
        "five of six killed at once",
        "five ranks were counted as one failure that came back five times",
        *(Fault("kill", r, "begin", 3) for r in range(5)),
        world_size=6,
    ),
    _case(
        "a hang that comes back",
        "its text was never the same twice, so it came back for ever",
        Fault("hang", 1, "forward", 3, always=True),
        phase="Failed",
        restarts=3,
    ),
    _case("a rank that leaves early", "nobody waited for it by name", Fault("leave", 1, "forward", 3), resets=False),
    _case(
        "a long transfer before the end",
        "pages are older than reports: whoever was given the state slowly was taken for hung",
        Fault("raise-memory", 2, "reduced", 5),
        transfer_s=0.9,
    ),
    _case(
        "a partition while ranks are paused",
        "the manager heard nothing, took all ranks for hung and started everybody again",
        Fault("raise-memory", 2, "begin", 3),
        Fault("partition", phase="Pausing", for_s=4.0),
    ),
    _case(
        "a partition while ranks become done",
        "ranks that wait for the manager were taken for a stall",
        Fault("partition", at=0.3, for_s=1.5),
    ),
    _case(
        "a fault while the replacement has already joined",
        "it went on waiting for its first group and was taken for hung",
        Fault("kill", 1, "publish", 3),
        Fault("kill", 0, "formed", 3),
    ),
    _case(
        "a second rank dies while ranks are in an evaluation",
        "who had finished it was believed to need nothing more from the others",
        Fault("kill", 0, "begin", 3),
        Fault("kill", 1, "stand", 3),
        eval_every=3,
    ),
    _case(
        "all leave their loop in a step that does not count",
        "replacements left it in their rehearsals, and had ended well",
        Fault("raise-communication", 1, "begin", 3),
        attempts=1,
        leave_at=3,
        leaves="named",
        asks=False,
    ),
    _case(
        "all end with exit code 0 in a step that does not count",
        "the job had succeeded, with as many states as ranks",
        Fault("raise-communication", 1, "begin", 3),
        attempts=1,
        leave_at=3,
        leaves="exit",
        asks=False,
    ),
    _case(
        "one hangs in the step after which the others have left their loop",
        "they waited in no collective and at no gate, so nobody was to blame",
        Fault("hang", 1, "applied", 6),
        world_size=4,
        steps=10,
        leave_at=5,
    ),
    _case(
        "the node of the manager is lost",
        "it was rank 0's node and the store's too: with most systems the whole job starts again",
        Fault("kill-node", 0, "reduced", 3, node=-1),
        **SEVERAL,
    ),
    _case(
        "the manager is cut off with the lesser half",
        "it went on acting on what it heard: it started its own ranks again, and was never told that it was replaced",
        Fault("cut", phase="Running", delay_s=0.15, for_s=7.0, node=0),
        arbiter=False,
        **SEVERAL,
    ),
    _case(
        "a node is cut off and comes back",
        "when it was away for longer than a replacement takes, it has no place any more and stands by",
        Fault("cut", phase="Running", delay_s=0.15, for_s=7.0, node=2, silent=True),
        arbiter=False,
        **SEVERAL,
    ),
    _case(
        "half of two, without the manager",
        "a wait without a deadline: its agent looked for a manager for ever",
        Fault("kill-node", 0, "reduced", 3, node=-1),
        phase="NoQuorum",
        arbiter=False,
        **{**SEVERAL, "nodes": 2, "world_size": 2},
    ),
    _case(
        "half of two, where silence is declared to be death",
        "a new manager did not know of the declaration, and waited for ever",
        Fault("kill-node", 0, "reduced", 3, node=-1),
        arbiter=False,
        fail_stop_s=6.0,
        **{**SEVERAL, "nodes": 2, "world_size": 2},
    ),
    _case(
        "a short break of one connection",
        "the agent went to another manager, which was not in office, and stayed until it was taken for lost",
        Fault("partition", phase="Running", delay_s=0.05, for_s=1.0, node=1),
        restarts=0,
        **SEVERAL,
    ),
    _case(
        "a node is lost and nobody is there to take its place",
        "the others were started again and again, for nothing, until that was called the same failure three times",
        Fault("kill-node", 1, "reduced", 3, node=-1),
        phase="Failed",
        attempts=1,
        **{**SEVERAL, "standbys": ()},
    ),
    _case(
        "a node is lost while a copy is kept",
        "it counted as one that does not answer for a moment, so the deadline never passed",
        Fault("kill", 1, "committed", 3),
        Fault("kill-node", phase="Pausing", delay_s=0.05, node=1),
        attempts=2,
        **{**SEVERAL, "policies": (Policy.RETRY, Policy.RECOVER, Policy.EXIT)},
    ),
    _case(
        "a node is cut off at the very end",
        "the others ended, and it took itself for the last one left and began the work again",
        Fault("cut", phase="Finishing", for_s=1.0, node=2, links="managers"),
        arbiter=False,
        attempts=1,
        **SEVERAL,
    ),
    _case(
        "two nodes are lost, one after the other",
        "the partner that was chosen after the first had no copy yet when the second went",
        Fault("kill-node", 1, "reduced", 3, node=-1),
        Fault("kill-node", 2, "enter", 3, node=-1),
        **{**SEVERAL, "standbys": (0.0, 0.0)},
    ),
    _case(
        "a rank dies that may only be replaced elsewhere",
        "all started again, because recover-in-place was not configured",
        Fault("kill", 1, "reduced", 3),
        restarts=0,
        **{**SEVERAL, "world_size": 6, "policies": (Policy.RECOVER, Policy.EXIT)},
    ),
    _case(
        "a rank dies in a pod that may only be replaced elsewhere",
        "the same; nobody took the pod away",
        Fault("kill", 0, "reduced", 3),
        restarts=0,
        pods=True,
        **{**SEVERAL, "world_size": 6, "standbys": (), "policies": (Policy.RECOVER, Policy.EXIT)},
    ),
    _case(
        "a node that was given up takes the next place",
        "what it had kept of those ranks as their partner was left aside, because it was their home now",
        Fault("stop", 2, "committed", 3),
        Fault("kill-node", phase="Pausing", delay_s=0.02, node=1),
        **{**SEVERAL, "policies": (Policy.RECOVER, Policy.EXIT)},
    ),
    _case(
        "a copy is saved while a node has just taken a place",
        "what was kept of its ranks was on the way there, and counted as lost",
        Fault("hang", 1, "reduced", 1),
        Fault("kill", 2, "paused"),
        attempts=1,
        **{**SEVERAL, "nodes": 2, "world_size": 4, "policies": (Policy.RECOVER, Policy.DUMP, Policy.EXIT)},
    ),
    _case(
        "a dump by fewer ranks amid what is between two steps",
        "it was not made, since nobody had kept what the lost ranks knew, though the script could do without; and those"
        " who come back later took no part in the collectives that the others had still to run",
        Fault("kill-node", node=2, at=0.9),
        Fault("kill-node", 1, "between", 30, node=-1),
        attempts=1,
        **SEVERAL
        | {
            "steps": 60,
            "eval_every": 1,
            "forward_s": 0.04,
            "elastic": True,
            "min_nodes": 2,
            "reschedule_s": 0.3,
            "standbys": (12.0, 12.5),
            "policies": (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.ELASTIC, Policy.DUMP, Policy.EXIT),
        },
    ),
    _case(
        "a node never comes",
        "all others waited for it until they gave up, though they were enough",
        Fault("kill-node", node=2, at=0.0),
        **SEVERAL
        | {
            "steps": 60,
            "elastic": True,
            "min_nodes": 2,
            "standbys": (4.0,),
            "policies": (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.ELASTIC, Policy.EXIT),
        },
    ),
    _case(
        "a rank is killed in a start with fewer, and another one notices first",
        "a connection that broke was taken for an error of the script, and all waited for a node that never came",
        Fault("kill-node", node=2, at=0.4),
        Fault("raise-communication", 1, "forward", 40),
        Fault("kill", 0, phase="Forming", nth=3, delay_s=0.02),
        attempts=2,
        **SEVERAL
        | {
            "steps": 60,
            "elastic": True,
            "min_nodes": 2,
            "standbys": (),
            "policies": (Policy.RECOVER_IN_PLACE, Policy.ELASTIC, Policy.EXIT),
        },
    ),
)
