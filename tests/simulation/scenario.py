"""What a seed stands for: a small job, its network, and the faults that befall it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from onward.core.policy import Policy

ALL_POLICIES = (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.EXIT)

# Points of a rank's life, in the order in which it passes them; `Fault.point` names one.
BLOCK_POINTS = ("begin", "forward", "enter", "reduced", "gate", "optimizer", "noise")  # user code can raise here
STEP_POINTS = (*BLOCK_POINTS, "entered", "publish", "applied", "meet", "committed", "between")
RECOVERY_POINTS = ("stand", "paused", "open", "connect", "receive", "serve", "formed")
SAVING_POINTS = ("save", "keep", "kept", "ready", "load")
OTHER_POINTS = ("boot", "setup", "join", "joined", "first", "done", "finish", "teardown")

DEADLY = ("kill", "exit", "stop", "hang", "leave")
RAISED = ("raise-communication", "raise-memory", "raise-once")
NODES = ("kill-node", "cut")
LINKS = ("all", "managers", "peers")
SWITCHING = ("boot", "rehearse", "parked", "follow", "following", "followed")  # points of a stand-in's life
CONTROL = ("manager-kill", "manager-usurp", "partition", "silence")


@dataclass
class Fault:
    """One thing that goes wrong. It fires at a point of a rank's life, at a time, or when the job enters a phase."""

    kind: str
    rank: int = -1
    point: str = ""
    step: int = -1  # -1: any
    replaced: bool = False  # only in a process that took somebody's place
    at: float = -1.0
    phase: str = ""
    nth: int = 1  # which time the job enters it
    delay_s: float = 0.0
    for_s: float = 0.0
    node: int = 0  # which agent
    other: int = -1  # one that is on the same side of a cut
    links: str = "all"  # that are cut: all, managers or peers
    silent: bool = False  # nobody is told of the cut
    record: int = 0  # of a manager: when so many have been written in all, and nobody was told of the last
    journal: str = "kept"  # what a new manager finds: kept, torn (the last record is missing), lost
    always: bool = False  # a bug in the script: fires every time
    fired: int = 0

    def __str__(self) -> str:
        where = [f"{k}={v}" for k, v in self.__dict__.items() if k not in ("kind", "fired") and v != _DEFAULTS[k]]
        return f"{self.kind}({', '.join(where)})"


_DEFAULTS = {k: f.default for k, f in Fault.__dataclass_fields__.items()}


@dataclass
class Scenario:
    """Everything a seed decides in advance. Times are seconds of the virtual clock."""

    world_size: int
    nodes: int
    steps: int
    spares: str
    policies: tuple[Policy, ...]
    max_restarts: int
    faults: list[Fault]
    library: bool = True
    collectives: int = 1
    noise: bool = False  # local state changes after the update, so the run never becomes light
    late_collective: bool = False  # a collective after the update
    setup_collective: bool = False
    eval_every: int = 0  # collectives between steps
    eval_section: bool = False  # these are in a section, and slow
    final_collective: bool = False  # one after the loop
    resets: bool = True  # a dead peer is noticed by the connection; else collectives wait for ever
    forward_s: float = 0.01
    setup_s: float = 0.05
    transfer_s: float = 0.01
    result_s: float = 0.005  # for the result of a collective to reach a rank
    loss: float = 0.0
    duplicates: float = 0.0
    reorder: bool = False
    slow_network: bool = False
    save_every: int = 0  # checkpoints
    disk_full: bool = False
    standbys: tuple[float, ...] = ()  # when each agent that only replaces others comes
    any_place: bool = False  # agents are not told which place to take
    arbiter: bool = True  # all on one kernel, which knows who is dead
    fail_stop_s: float = 0.0  # the user's word that after so long silence is death
    leave_at: int = -1  # the script leaves its loop at this step
    leaves: str = "break"  # and how: break; named, where it is noticed only at the end of the script; exit
    asks: bool = True  # whether the step has counted
    hot_switch: bool = False  # a node that is called sub-healthy is replaced while it trains
    pods: bool = False  # an operator replaces agents that are lost, or that the manager has given up
    elastic: bool = False  # the script deals micro-batches: it goes on with fewer ranks
    min_nodes: int = 0  # with so few at least; 0: with all
    reschedule_s: float = 3.0  # for somebody to take the place of a lost node

    @property
    def last_step(self) -> int:
        """After so many steps the script is through its loop."""
        return self.steps if self.leave_at < 0 else self.leave_at + 1

    @property
    def lanes(self) -> int:
        """Micro-batches of a step, whoever computes them."""
        return 2 * self.world_size

    @property
    def control_only(self) -> bool:
        return all(f.kind in CONTROL or f.kind == "kill-spare" for f in self.faults)

    def __str__(self) -> str:
        head = f"{self.world_size} ranks on {self.nodes} node(s), {self.steps} steps, spares {self.spares}"
        plain = ("faults", "world_size", "nodes", "steps", "spares")
        rest = ", ".join(f"{k}={v}" for k, v in self.__dict__.items() if k not in plain)
        return f"{head}\n  {rest}\n  faults: {'; '.join(map(str, self.faults)) or 'none'}"


def draw(rng: Random) -> Scenario:
    """A scenario at random."""
    nodes = rng.choices((1, 2, 3, 4), (66, 18, 11, 5))[0]
    world = nodes * (rng.choice((2, 2, 3, 4)) if nodes == 1 else rng.choice((1, 2)) if nodes < 4 else 1)
    steps = rng.randint(5, 10)
    hostile = rng.random() < 0.25
    s = Scenario(
        world_size=world,
        nodes=nodes,
        steps=steps,
        spares=rng.choice(("none", "one", "each")),
        policies=_policies(rng),
        max_restarts=rng.choices((32767, rng.randint(1, 4)), (88, 12))[0],
        faults=[],
        library=rng.random() >= 0.03,
        collectives=rng.choice((1, 1, 2)),
        noise=rng.random() < 0.2,
        late_collective=rng.random() < 0.1,
        setup_collective=rng.random() < 0.3,
        eval_every=rng.choice((0, 0, 0, 1, 1, 3)),
        eval_section=rng.random() < 0.3,
        final_collective=rng.random() < 0.1,
        resets=rng.random() < 0.75,
        forward_s=rng.choice((0.005, 0.02, 0.04)),
        setup_s=rng.choice((0.01, 0.1, 0.3)),
        transfer_s=rng.choice((0.002, 0.03, 0.1)),
        loss=rng.choice((0.0, 0.05, 0.2)) if hostile else 0.0,
        duplicates=rng.choice((0.0, 0.1)) if hostile else 0.0,
        reorder=hostile and rng.random() < 0.5,
        slow_network=rng.random() < 0.15,
        save_every=rng.choice((0, 0, 2, 3)),
        disk_full=rng.random() < 0.05,
    )
    if nodes > 1:
        _several_nodes(rng, s)
    if rng.random() < 0.35:
        s.faults = _faults_on_faults(rng, s)
    else:
        count = rng.choices((0, 1, 2, 3, 4, 9), (4, 42, 32, 13, 7, 2))[0]
        s.faults = [_fault(rng, s, i) for i in range(count)]
    if s.faults and rng.random() < 0.08:
        twin = replace(rng.choice(s.faults))
        twin.rank = (twin.rank + 1) % world if twin.rank >= 0 else -1
        s.faults.append(twin)  # the same thing, at the same moment, to its neighbour
    if rng.random() < 0.25:
        s.faults.append(_control_fault(rng, s))
    if nodes > 1 and rng.random() < 0.65:
        s.faults = s.faults[: rng.choice((0, 1, 1, 2))]
        s.faults += [_node_fault(rng, s) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    hanging = [f for f in s.faults if f.kind == "hang"]
    alone = s.eval_section or any(f.kind == "leave" for f in s.faults)
    for fault in hanging if alone else hanging[1:]:
        fault.kind = "stop"  # when nobody waits, or slowness is declared legal, nobody can tell it from hard work
    if not s.library:
        for fault in s.faults:
            fault.kind = "kill" if fault.kind in ("stop", "hang") else fault.kind  # nothing shows that these live
    _leave_early(rng, s)
    return s


def _leave_early(rng: Random, s: Scenario) -> None:
    """Now and then the script does not come to its last step. Drawn aside: all else of a seed stays as it is."""
    aside = Random()
    aside.setstate(rng.getstate())
    if s.library and aside.random() < 0.15:
        struck = [f.step for f in s.faults if f.step >= 1]
        s.leave_at = aside.choice(struck) if struck and aside.random() < 0.5 else aside.randrange(1, s.steps)
        s.leaves = aside.choice(("break", "named", "exit"))
        s.asks = aside.random() < 0.5


def draw_switch(rng: Random) -> Scenario:
    """A job of which a node is called sub-healthy, with somebody to stand in, and perhaps more trouble meanwhile."""
    nodes = rng.choice((2, 2, 3))
    s = Scenario(
        world_size=nodes * rng.choice((1, 1, 2)),
        nodes=nodes,
        steps=rng.randint(40, 60),
        spares=rng.choice(("none", "each")),
        policies=(Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.EXIT),
        max_restarts=32767,
        faults=[],
        collectives=rng.choice((1, 1, 2)),
        noise=rng.random() < 0.2,
        late_collective=rng.random() < 0.1,
        eval_every=rng.choice((0, 0, 1, 3)),
        resets=rng.random() < 0.75,
        forward_s=rng.choice((0.02, 0.04)),
        setup_s=rng.choice((0.01, 0.1)),
        transfer_s=rng.choice((0.002, 0.03)),
        standbys=(0.0,) * rng.choice((1, 1, 2)),
        arbiter=rng.random() < 0.6,
        hot_switch=True,
    )
    sick = rng.randrange(nodes)
    s.faults = [Fault("sub-health", node=sick, at=rng.uniform(0.3, 0.8))]
    s.faults += [_fault_in_switch(rng, s, sick) for _ in range(rng.choice((0, 0, 1, 1, 1, 2)))]
    return s


def draw_swap(rng: Random) -> Scenario:
    """The same, with results that come late, so that some ranks have the end of a step behind them and others have not
    when all are called to the swap; and whoever follows loses sight of its rank just then."""
    s = draw_switch(rng)
    s.result_s, s.eval_every = rng.choice((0.02, 0.03)), rng.choice((s.eval_every, 1))
    local = s.world_size // s.nodes
    rank, delay = s.faults[0].node * local + rng.randrange(local), rng.choice((0.0, 0.02, 0.04, 0.06))
    if rng.random() < 0.7:
        s.faults.append(Fault("drop-feed", rank, phase="Pausing", delay_s=delay))
    return s


def _fault_in_switch(rng: Random, s: Scenario, sick: int) -> Fault:
    """Of who follows, of who is followed, of anybody else, of the manager, or of the network."""
    local = s.world_size // s.nodes
    rank = sick * local + rng.randrange(local)
    roll, at = rng.random(), rng.uniform(0.5, 1.8)
    if roll < 0.3:
        point = rng.choice((*SWITCHING, "following", "following", "following"))
        return Fault(rng.choice(("kill", "kill", "stop", "kill-node")), rank, point, node=-1, replaced=True)
    if roll < 0.5:
        return Fault(rng.choice(("kill", "stop", "raise-communication", "kill-node")), rank, at=at, node=sick)
    if roll < 0.6:
        return Fault("kill", rng.randrange(s.world_size), at=at)
    if roll < 0.8 or s.arbiter:
        journal, delay = rng.choice(("kept", "torn", "lost")), rng.choice((0.0, 0.005, 0.02))
        if rng.random() < 0.5:
            return Fault("manager-kill", at=at, journal=journal)
        phase = rng.choice(("Pausing", "Forming"))
        return Fault("manager-kill", phase=phase, nth=1 + (phase == "Forming"), delay_s=delay, journal=journal)
    node = rng.choice((sick, s.nodes, rng.randrange(s.nodes)))
    return Fault("cut", node=node, at=at, for_s=rng.choice((0.3, 1.0, 7.0)), silent=rng.random() < 0.5)


def draw_move(rng: Random) -> Scenario:
    """A job that may not restart a process in its place: the node of a rank that dies is given up."""
    nodes = rng.choice((2, 3, 3))
    pods = rng.random() < 0.5
    alone = (Policy.RECOVER, Policy.EXIT)
    s = Scenario(
        world_size=nodes * rng.choice((1, 2, 2)),
        nodes=nodes,
        steps=rng.randint(6, 10),
        spares=rng.choice(("none", "each")),
        policies=rng.choice((alone, alone, (Policy.RETRY, *alone), (Policy.RECOVER, Policy.DUMP, Policy.EXIT))),
        max_restarts=32767,
        faults=[],
        collectives=rng.choice((1, 1, 2)),
        noise=rng.random() < 0.2,
        late_collective=rng.random() < 0.1,
        eval_every=rng.choice((0, 0, 1, 3)),
        resets=rng.random() < 0.75,
        forward_s=rng.choice((0.01, 0.03)),
        setup_s=rng.choice((0.01, 0.1)),
        transfer_s=rng.choice((0.002, 0.03)),
        save_every=rng.choice((0, 0, 3)),
        standbys=() if pods else rng.choice(((), (0.0,), (0.0,), (0.0, 0.0), (rng.uniform(0.3, 3.0),))),
        pods=pods,
        arbiter=pods or rng.random() < 0.6,
    )
    kind = rng.choice(("kill", "kill", "kill", "exit", "stop", "hang"))
    s.faults = [Fault(kind, rng.randrange(s.world_size), rng.choice(STEP_POINTS), rng.randrange(1, s.steps))]
    s.faults += [_fault_in_move(rng, s) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return s


def _fault_in_move(rng: Random, s: Scenario) -> Fault:
    """Of another rank, of a whole node, of the manager, or of the network."""
    roll, rank = rng.random(), rng.randrange(s.world_size)
    if roll < 0.2:
        return Fault("kill", rank, rng.choice(STEP_POINTS), rng.randrange(s.steps))
    if roll < 0.5:
        return _fault_in_recovery(rng, s, rank)
    if roll < 0.8:
        journal, delay = rng.choice(("kept", "torn", "lost")), rng.choice((0.0, 0.005, 0.02, 0.1))
        phase = rng.choice(("Pausing", "Forming", "Running"))
        return Fault("manager-kill", phase=phase, nth=1 + (phase != "Pausing"), delay_s=delay, journal=journal)
    if roll < 0.9 or s.arbiter:
        delay = rng.choice((0.0, 0.02, 0.2))
        return Fault("kill-node", node=rng.randrange(s.nodes), phase="Pausing", delay_s=delay)
    return Fault("cut", node=rng.randrange(s.nodes), phase="Pausing", for_s=rng.choice((0.3, 1.0, 7.0)))


def draw_elastic(rng: Random) -> Scenario:
    """A job that loses nodes and goes on with fewer; others come later, or nobody does; and there is more trouble."""
    nodes = rng.choice((2, 3, 3, 4))
    in_place = (Policy.RETRY, Policy.RECOVER_IN_PLACE)
    waits, at_once = (*in_place, Policy.RECOVER, Policy.ELASTIC, Policy.EXIT), (*in_place, Policy.ELASTIC, Policy.EXIT)
    alone = (Policy.ELASTIC, Policy.EXIT)
    s = Scenario(
        world_size=nodes * rng.choice((1, 1, 2)),
        nodes=nodes,
        steps=rng.randint(40, 80),
        spares=rng.choice(("none", "each")),
        policies=rng.choice((waits, waits, at_once, alone, (Policy.ELASTIC, Policy.DUMP, Policy.EXIT))),
        max_restarts=32767,
        faults=[],
        collectives=rng.choice((1, 1, 2)),
        eval_every=rng.choice((0, 0, 1, 3)),
        resets=rng.random() < 0.75,
        forward_s=rng.choice((0.02, 0.04)),
        setup_s=rng.choice((0.01, 0.1)),
        transfer_s=rng.choice((0.002, 0.03)),
        standbys=tuple(rng.uniform(0.8, 3.0) for _ in range(rng.choice((0, 1, 1, 2)))),
        arbiter=rng.random() < 0.7,
        save_every=rng.choice((0, 0, 5)),
        elastic=True,
        min_nodes=rng.choice((1, 1, nodes - 1, nodes)),
        reschedule_s=rng.choice((0.2, 0.5, 1.0)),
    )
    s.faults = [Fault("kill-node", node=rng.randrange(nodes), at=rng.uniform(0.7, 1.2))]
    s.faults += [_fault_while_shrunk(rng, s) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return s


def draw_short(rng: Random) -> Scenario:
    """A job that goes on with fewer, and then starts again: all that are left die, or nothing cheaper is there."""
    s = draw_elastic(rng)
    in_place = (Policy.RECOVER_IN_PLACE, Policy.ELASTIC)
    s.policies = rng.choice(
        (
            (*in_place, Policy.DUMP, Policy.EXIT),
            (*in_place, Policy.EXIT),
            (Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.ELASTIC, Policy.DUMP, Policy.EXIT),
            (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.ELASTIC, Policy.DUMP, Policy.EXIT),
        )
    )
    s.save_every = rng.choice((0, 5, 5))
    s.min_nodes = rng.choice((1, s.nodes - 1, s.nodes - 1, s.nodes))
    s.standbys = tuple(rng.uniform(1.5, 6.0) for _ in range(rng.choice((0, 1, 1, 2))))
    at = rng.uniform(1.6, 2.6)
    if rng.random() < 0.5:
        s.faults[1:] = [Fault("kill", rank, at=at) for rank in range(s.world_size)]
    else:
        kind = rng.choice(("raise-communication", "drop", "raise-once", "raise-memory"))
        point = rng.choice(("enter", "reduced")) if kind == "drop" else rng.choice(BLOCK_POINTS[:5])
        struck = range(rng.choice((1, s.world_size)))
        s.faults[1:] = [Fault(kind, rank, point, rng.choice((28, 34))) for rank in struck]
    s.faults += [_fault_in_short_start(rng, s, at) for _ in range(rng.choice((0, 1, 1, 2)))]
    return s


def _fault_in_short_start(rng: Random, s: Scenario, at: float) -> Fault:
    """Of the manager, of one that starts again, or of its node."""
    roll, delay = rng.random(), rng.choice((0.0, 0.01, 0.05, 0.15))
    if roll < 0.4:
        phase = rng.choice(("Starting", "Starting", "Saving", "Forming", "Running"))
        journal = rng.choice(("kept", "torn", "lost"))
        return Fault("manager-kill", phase=phase, nth=rng.choice((1, 2, 3)), delay_s=delay, journal=journal)
    if roll < 0.7:
        return Fault("kill", rng.randrange(s.world_size), at=at + rng.uniform(0.02, 0.6))
    return Fault("kill-node", node=rng.randrange(s.nodes + len(s.standbys)), at=at + rng.uniform(-0.2, 1.0))


def _fault_while_shrunk(rng: Random, s: Scenario) -> Fault:
    """Of another node, of a rank, of one that prepares to join, of the manager, or of the network."""
    roll, rank, at = rng.random(), rng.randrange(s.world_size), rng.uniform(0.5, 3.5)
    if roll < 0.2:
        return Fault("kill-node", node=rng.randrange(s.nodes + len(s.standbys)), at=at)
    if roll < 0.35:
        kind = rng.choice(("kill", "kill", "stop", "raise-communication"))
        return Fault(kind, rank, rng.choice(BLOCK_POINTS[:6]), 30)
    if roll < 0.45:
        return Fault(rng.choice(("kill", "stop", "hang")), rank, at=at)
    if roll < 0.65:
        point = rng.choice(("boot", "setup", "rehearse", "parked", "open", "connect", "receive", "formed"))
        return Fault(rng.choice(("kill", "kill", "stop", "kill-node")), rank, point, node=-1, replaced=True)
    if roll < 0.9 or s.arbiter:
        journal, delay = rng.choice(("kept", "torn", "lost")), rng.choice((0.0, 0.005, 0.02, 0.1))
        if rng.random() < 0.5:
            return Fault("manager-kill", at=at, journal=journal)
        phase = rng.choice(("Pausing", "Forming", "Running"))
        return Fault("manager-kill", phase=phase, nth=rng.choice((2, 3, 4)), delay_s=delay, journal=journal)
    for_s = rng.choice((0.3, 1.0, 7.0))
    return Fault("cut", node=rng.randrange(s.nodes), at=at, for_s=for_s, silent=rng.random() < 0.5)


def _several_nodes(rng: Random, s: Scenario) -> None:
    s.standbys = tuple(rng.choice((0.0, 0.0, rng.uniform(0.5, 5.0))) for _ in range(rng.choice((0, 1, 1, 2, 2))))
    s.any_place = rng.random() < 0.2
    s.arbiter = rng.random() < 0.45
    s.fail_stop_s = 6.0 if not s.arbiter and rng.random() < 0.3 else 0.0
    if rng.random() < 0.75:
        s.policies = tuple(p for p in Policy if p in s.policies or p in (Policy.RECOVER_IN_PLACE, Policy.RECOVER))


def _node_fault(rng: Random, s: Scenario) -> Fault:
    """A node is lost, or only cannot be reached for a while."""
    everybody = s.nodes + len(s.standbys)
    node = rng.randrange(everybody if rng.random() < 0.2 else s.nodes)
    fault = Fault("kill-node", node=node)
    if rng.random() < 0.6 and not s.arbiter:  # who shares a kernel shares its network: nothing to cut
        shorter = (0.3, 1.0, 2.0)  # than what the user has declared to be death
        fault.kind, fault.links = "cut", rng.choices(LINKS, (6, 3, 1))[0]
        fault.for_s = rng.choice(shorter) if s.fail_stop_s else rng.choice((*shorter, 4.5, 7.0))
        fault.silent = rng.random() < 0.5
        fault.other = rng.choice((-1, -1, -1, (node + 1) % everybody))
    elif rng.random() < 0.35:
        point = rng.choice((*STEP_POINTS, *RECOVERY_POINTS, "keeping", "join", "ready", "done", "finish"))
        return Fault("kill-node", rng.randrange(s.world_size), point, rng.choice((-1, rng.randrange(s.steps))), node=-1)
    if rng.random() < 0.5:
        fault.at = rng.uniform(0.0, 2.0)
    else:
        fault.phase = rng.choice(("Starting", "Pausing", "Pausing", "Saving", "Forming", "Running", "Finishing"))
        fault.delay_s = rng.choice((0.0, 0.002, 0.01, 0.05, 0.3))
    return fault


def _faults_on_faults(rng: Random, s: Scenario) -> list[Fault]:
    """One fault that starts a recovery and one or two that strike in the midst of it."""
    kind = rng.choice(("kill", "kill", "kill", "drop", "raise-memory", "raise-communication"))
    points = {"kill": STEP_POINTS, "drop": ("enter", "entered", "reduced")}.get(kind, BLOCK_POINTS)
    faults = [Fault(kind, rng.randrange(s.world_size), rng.choice(points), rng.randrange(s.steps))]
    for _ in range(rng.choice((1, 1, 1, 2))):
        rank = rng.randrange(s.world_size)
        if rng.random() < 0.8:
            faults.append(_fault_in_recovery(rng, s, rank))
        else:
            faults.append(_control_fault(rng, s))
    return faults


def _policies(rng: Random) -> tuple[Policy, ...]:
    other = [(Policy.EXIT,), (Policy.RETRY, Policy.EXIT), (Policy.RECOVER_IN_PLACE, Policy.EXIT)]
    other += [(Policy.DUMP, Policy.EXIT), (Policy.RETRY, Policy.DUMP, Policy.EXIT)]
    with_dump = (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.DUMP, Policy.EXIT)
    return rng.choice(other) if rng.random() < 0.15 else rng.choice((ALL_POLICIES, with_dump))


def _fault(rng: Random, s: Scenario, index: int) -> Fault:
    roll = rng.random()
    rank = rng.randrange(s.world_size)
    if roll < 0.12:
        return _control_fault(rng, s)
    if roll < 0.34 and index:
        return _fault_in_recovery(rng, s, rank)
    if roll < 0.46:
        kind = rng.choice(RAISED)
        return Fault(kind, rank, rng.choice(BLOCK_POINTS), rng.randrange(s.steps))
    if roll < 0.49:
        kind = rng.choice(("bug", "bug", "hang"))
        return Fault(kind, rank, rng.choice(BLOCK_POINTS), rng.randrange(s.steps), always=True)
    if roll < 0.53:
        return Fault("drop", rank, rng.choice(("enter", "entered", "reduced")), rng.randrange(s.steps))
    if roll < 0.57:
        return Fault("kill-spare", rank, at=rng.uniform(0.3, 2.0))
    if roll < 0.62:
        return Fault("pause-process", rank, at=rng.uniform(0.0, 1.5), for_s=rng.choice((0.02, 0.1, 0.4, 1.5)))
    kind = rng.choices(DEADLY, (6, 1, 2, 2, 1))[0]
    if roll < 0.75:
        return Fault(kind, rank, at=rng.uniform(0.0, 1.5))
    if roll < 0.94:
        return Fault(kind, rank, rng.choice(STEP_POINTS), rng.randrange(s.steps))
    point = rng.choice(OTHER_POINTS)
    if kind == "hang" and point in ("boot", "done", "finish", "teardown"):
        kind = "stop"  # user code before init() and after the loop may take as long as it likes
    return Fault(kind, rank, point)


def _fault_in_recovery(rng: Random, s: Scenario, rank: int) -> Fault:
    kind = rng.choices((*DEADLY, "start-fails"), (6, 1, 1, 2, 1, 1))[0]
    if kind == "start-fails":
        return Fault(kind, rank, "start", replaced=True)
    if rng.random() < 0.5:
        phase, delay = rng.choice(("Pausing", "Forming", "Forming")), rng.choice((0.0, 0.002, 0.01, 0.02, 0.04, 0.1))
        return Fault(kind, rank, phase=phase, nth=1 + (phase == "Forming"), delay_s=delay)
    if rng.random() < 0.3:
        return Fault(
            kind, rank, rng.choice(("boot", "setup", "rehearse", "parked", "open", "receive", "formed")), replaced=True
        )
    if rng.random() < 0.2:
        return Fault(kind, rank, rng.choice(SAVING_POINTS))
    point = rng.choice(RECOVERY_POINTS)
    if point in ("open", "connect", "formed"):  # at any step would mean at the first group
        return Fault(kind, rank, point, rng.choice((-1, rng.randrange(1, s.steps))))
    return Fault(kind, rank, point)


def _control_fault(rng: Random, s: Scenario) -> Fault:
    kind = rng.choices(CONTROL, (5, 2, 2, 1))[0]
    journal = rng.choice(("kept", "torn", "lost"))
    for_s = rng.choice((0.05, 0.3, 1.0))
    node = rng.randrange(s.nodes)
    if rng.random() < 0.4:
        phase = rng.choice(("Pausing", "Saving", "Forming", "Running", "Finishing", "Starting"))
        delay = rng.choice((0.0, 0.001, 0.01, 0.05))
        return Fault(kind, phase=phase, delay_s=delay, for_s=for_s, node=node, journal=journal)
    return Fault(kind, at=rng.uniform(0.0, 2.0), for_s=for_s, node=node, journal=journal)
