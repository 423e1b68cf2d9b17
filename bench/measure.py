"""What is measured: each function starts jobs, hurts them or leaves them alone, and returns plain numbers."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path

import psutil
from jobs import Fault, Job, JobDied, Launcher, launchers, median, p95

RANKS = 4
FAULT_JOB: dict[str, object] = {"every": 20, "batch": 256}  # a step of some 30 ms, a checkpoint every 20 steps
STORM_S = 15.0  # between two faults of a storm
STATE_BYTES = 12  # of one parameter under AdamW: itself and two moments, float32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done."""

    rounds: int  # of the round-robin of launchers
    ours: list[str]  # faults of one job of onward
    theirs: list[str]  # and of a peer, where each takes many seconds
    never_s: float  # a peer that has not recovered by then is said not to
    slow_kills: int  # with 5 s of set-up in the script
    step_rounds: int
    block_s: float  # of one side in one round
    both_s: float  # of the two sides in the same processes
    sizes: tuple[tuple[int, int], ...]  # (width, layers) of the larger models
    size_kills: int
    storms: int  # pairs of a stretch with a fault and one without
    switches: tuple[tuple[int, int], ...]  # (width, layers) of models whose node is switched
    node_losses: int
    dumps: tuple[tuple[int, int], ...]  # (width, layers) of models that are saved by those who survive
    node_storm_s: float


FULL = Plan(
    rounds=3,
    ours=["kill", "retry"] * 5 + ["stop"] * 3,
    theirs=["kill", "retry", "kill"],
    never_s=20,
    slow_kills=3,
    step_rounds=3,
    block_s=5,
    both_s=30,
    sizes=((1024, 10), (2048, 24)),
    size_kills=2,
    storms=5,
    switches=((256, 4), (1024, 8), (2048, 6)),
    node_losses=4,
    dumps=((1024, 8), (2048, 6)),
    node_storm_s=180,
)
QUICK = Plan(
    rounds=1,
    ours=["kill", "retry", "kill", "retry", "stop"],
    theirs=["kill"],
    never_s=5,
    slow_kills=0,
    step_rounds=0,
    block_s=4,
    both_s=8,
    sizes=((1024, 10),),
    size_kills=1,
    storms=1,
    switches=((1024, 8),),
    node_losses=1,
    dumps=((1024, 8),),
    node_storm_s=40,
)


@dataclass
class Samples:
    """Everything that was seen of one launcher and one kind of fault."""

    faults: list[Fault] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    incidents: list[dict] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [f.recover_s for f in self.faults if f.recover_s is not None]

    @property
    def lost(self) -> float:
        return median([f.steps_lost for f in self.faults if f.recover_s is not None])

    @property
    def never(self) -> list[Fault]:
        return [f for f in self.faults if f.recover_s is None]


class Bench:
    """The places and names that all measurements share."""

    def __init__(self, plan: Plan, work: Path, peers: list[Launcher], say) -> None:
        self.plan, self._work, self.peers, self.say = plan, work, peers, say
        self.launchers = launchers()
        self._numbers = count(1)

    def directory(self) -> Path:
        return self._work / f"{next(self._numbers):03d}"

    def job(self, name: str, launcher: Launcher | None = None, **options: object) -> Job:
        launcher = launcher or self.launchers[name]
        self.say(f"{name}: {' '.join(f'{k}={v}' for k, v in options.items())}")
        return Job(launcher, self.directory(), **options)


# ---------------------------------------------------------------------------------------------------- faults


def ranks_to_strike() -> Iterator[int]:
    """Random ranks, rank 0 among them from the start."""
    yield 0
    while True:
        yield random.randrange(RANKS)


def faults(bench: Bench) -> dict[tuple[str, str], Samples]:
    """Kills, retries and stops, launcher after launcher, round after round: (launcher, kind) -> samples."""
    plan, victims = bench.plan, ranks_to_strike()
    seen: dict[tuple[str, str], Samples] = defaultdict(Samples)
    sides = [bench.launchers["torchrun"], *bench.peers, bench.launchers["onward"]]
    for number in range(plan.rounds):
        for launcher in sides:
            ours = launcher.name == "onward"
            kinds = plan.ours if ours else plan.theirs + ["stop"] * (number == 0)
            bound = 60.0 if ours else 90.0
            with bench.job(launcher.name, launcher, **FAULT_JOB) as job:
                strike_all(job, seen, launcher.name, kinds, victims, bound, plan.never_s)
    with bench.job("torchrun, stock", **FAULT_JOB) as job:
        strike_all(job, seen, "torchrun, stock", ["kill"], victims, plan.never_s + 15, plan.never_s)
    return seen


def strike_all(job: Job, seen, name: str, kinds: list[str], victims: Iterator[int], bound_s, never_s: float) -> None:
    """Each fault strikes a job that trains, with its spares parked, some steps after the one before."""
    kind = kinds[0]
    try:
        for kind in kinds:
            job.wait_steps(10)
            if name == "onward":
                job.wait_spares(RANKS, 60)
            calm = job.step_s(time.monotonic() - 3)
            peer_stop = kind == "stop" and name != "onward"
            fault = job.hurt(kind, next(victims), never_s if peer_stop else bound_s)
            seen[name, kind].faults.append(fault)
            seen[name, kind].step_s.append(calm)
            if fault.recover_s is None:
                break
    except JobDied as error:
        seen[name, kind].broken.append(str(error))
    incidents = job.incidents()
    for kind in set(kinds):
        for fault in seen[name, kind].faults:
            seen[name, kind].incidents += incident_of(fault, incidents)


def incident_of(fault: Fault, incidents: list[dict]) -> list[dict]:
    """onward's account of `fault`, with the stages as seconds after the fault (the clocks are the same one)."""
    for incident in incidents:
        stages = {stage: at - fault.at for stage, at in incident["marks"]}
        if 0 <= stages.get("detect", -1.0) <= (fault.recover_s or fault.bound_s):
            ranks = sorted({f["rank"] for f in incident["faults"] if f["retryable"] != "communication"})  # not an echo
            return [{"stages": stages, "policy": incident["policy"], "blamed": ranks, "rank": fault.rank}]
    return []


def slow_setup(bench: Bench) -> dict[tuple[str, str], Samples]:
    """Kills again, for a script that needs five seconds to come to its first step."""
    seen: dict[tuple[str, str], Samples] = defaultdict(Samples)
    victims = ranks_to_strike()
    for name, kills in (("torchrun", 2), ("onward", bench.plan.slow_kills)):
        with bench.job(name, setup_s=5, **FAULT_JOB) as job:
            strike_all(job, seen, name, ["kill"] * kills, victims, 90.0, 90.0)
    return seen


def without_spare(bench: Bench) -> dict[tuple[str, str], Samples]:
    """Kills where the replacement must be forked and must run the script first."""
    seen: dict[tuple[str, str], Samples] = defaultdict(Samples)
    with bench.job("onward, no spares", **FAULT_JOB) as job:
        strike_all(job, seen, "onward, no spares", ["kill"] * 5, ranks_to_strike(), 60.0, 60.0)
    return seen


# ---------------------------------------------------------------------------------------------------- cost per step


def batch_for(bench: Bench, targets_s: list[float]) -> list[int]:
    """How many samples make a step as long as wanted: from two sizes, along a straight line."""
    few, many = 64, 1024
    seconds = {}
    for batch in (few, many):
        with bench.job("onward, no spares", batch=batch) as job:
            job.wait_steps(10)
            job.wait_steps(20)
            seconds[batch] = job.step_s()
    slope = max(1e-7, (seconds[many] - seconds[few]) / (many - few))
    return [max(1, round(few + (target - seconds[few]) / slope)) for target in targets_s]


def step_cost(bench: Bench, batch: int) -> dict:
    """Plain DDP under torchrun and onward, a block each in turn."""
    rounds: Rounds = []
    own: list[float] = []
    for _ in range(bench.plan.step_rounds):
        pair = []
        for name in ("torchrun", "onward"):
            with bench.job(name, batch=batch) as job:
                job.wait_steps(5)
                if name == "onward":
                    job.wait_spares(RANKS)
                since = time.monotonic()
                time.sleep(bench.plan.block_s)
                pair.append(job.step_times(since))
                if name == "onward":
                    own += [line.note_ns / 1e9 for lines in job.lines() for line in lines if line.at >= since]
        rounds.append((pair[0], pair[1]))
    return {
        "batch": batch,
        **difference(rounds),
        "own_median_s": median(own),
        "own_p95_s": p95(own),
        "rounds": [[median(a), median(b)] for a, b in rounds],
    }


def same_process_cost(bench: Bench, batch: int, block: int) -> dict:
    """Blocks of plain DDP and of onward's steps in turn, in the same processes."""
    with bench.job("onward, no spares", script="train_both.py", batch=batch, block=block) as job:
        job.wait_steps(3 * block)
        since = time.monotonic()
        time.sleep(bench.plan.both_s)
        lines = [line for line in job.lines()[0] if line.at >= since]
    blocks = [(plain, list(of)) for plain, of in groupby(lines, lambda line: line.step < 0)]
    blocks = blocks[1 + (not blocks[1][0]) : -1]  # whole ones, a plain one first
    plain, ours = ([lines for is_plain, lines in blocks if is_plain is wanted] for wanted in (True, False))
    pairs = list(zip(plain, ours, strict=False))
    wall = [([x.note_ns / 1e9 for x in a], [x.note_ns / 1e9 for x in b]) for a, b in pairs]
    cpu = [([x.cpu_ns / 1e9 for x in a], [x.cpu_ns / 1e9 for x in b]) for a, b in pairs]
    return {"batch": batch, "pairs": len(pairs), **difference(wall), "cpu": difference(cpu)}


Rounds = list[tuple[list[float], list[float]]]  # of (seconds of steps without onward, and with)


def difference(rounds: Rounds) -> dict:
    """What a step takes on both sides, and the difference with its interval."""
    return {
        "plain_s": median([t for a, _ in rounds for t in a]),
        "onward_s": median([t for _, b in rounds for t in b]),
        "difference_s": median([median(b) - median(a) for a, b in rounds]),
        "interval_s": interval(rounds),
    }


def interval(rounds: Rounds, times: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the median difference: rounds are drawn anew, and steps within them."""
    draw = random.Random(0)
    found = []
    for _ in range(times if rounds else 0):
        chosen = draw.choices(rounds, k=len(rounds))
        differences = [median(draw.choices(b, k=len(b))) - median(draw.choices(a, k=len(a))) for a, b in chosen]
        found.append(median(differences))
    found.sort()
    return (found[int(0.025 * times)], found[int(0.975 * times) - 1]) if found else (float("nan"), float("nan"))


# ---------------------------------------------------------------------------------------------------- state, storm


def room_for(width: int, layers: int) -> bool:
    """Whether it fits: in each rank and in the spare the state, an undo copy of it, gradients and buckets."""
    return psutil.virtual_memory().available > (RANKS + 1) * width * width * layers * (2 * STATE_BYTES + 8) * 1.1


def state_size(bench: Bench, width: int, layers: int) -> dict:
    """Kill the rank that has the one spare; what takes time is the state."""
    with bench.job("onward, one spare", width=width, layers=layers, batch=8) as job:
        seen: list[dict] = []
        seconds: list[float | None] = []
        for _ in range(bench.plan.size_kills):
            job.wait_steps(4, 300)
            job.wait_spares(1, 300)
            fault = job.hurt("kill", 0, 300)
            time.sleep(0.5)
            seconds.append(fault.recover_s)
            seen += incident_of(fault, job.incidents())
        step = job.step_s()
    form = median([i["stages"]["form"] - i["stages"]["mend"] for i in seen if "form" in i["stages"]])
    parameters = width * width * layers
    size = parameters * STATE_BYTES
    return {
        "parameters": parameters,
        "state_bytes": size,
        "step_s": step,
        "recover_s": seconds,
        "form_s": form,
        "form_bytes_per_s": size / form,
        "memcpy_bytes_per_s": memcpy(),
        "stages": stage_medians(seen),
    }


def memcpy(size: int = 256 << 20) -> float:
    """Bytes a second, from memory to memory, both touched before."""
    source, target = bytearray(b"\1") * size, bytearray(b"\2") * size
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        memoryview(target)[:] = source
        seconds.append(time.perf_counter() - begun)
    return size / median(seconds)


def storm(bench: Bench, kinds: Sequence[str] = ("kill", "retry")) -> dict:
    """Steps in 15 s with a fault at a random moment of them, of each kind in turn, and in 15 s without, over and over.

    The two take turns in one job, so that both see the same machine. The fault comes early enough for its whole cost,
    also that of building a new spare, to fall into its own stretch.
    """
    victims = ranks_to_strike()
    pairs: list[tuple[float, float]] = []
    struck = []
    with bench.job("onward", **FAULT_JOB) as job:
        job.wait_steps(10)
        job.wait_spares(RANKS)
        for number in range(max(bench.plan.storms, len(kinds))):
            calm, _ = stretch(job, None, 0)
            hurt, fault = stretch(job, kinds[number % len(kinds)], next(victims))
            pairs.append((hurt, calm))
            struck.append(fault)
    low, high = interval([([0.0], [hurt / calm]) for hurt, calm in pairs])
    return {
        "calm": [calm for _, calm in pairs],
        "storm": [hurt for hurt, _ in pairs],
        "goodput": median([hurt / calm for hurt, calm in pairs]),
        "overall": sum(hurt for hurt, _ in pairs) / sum(calm for _, calm in pairs),
        "interval": [low, high],
        "recovery_alone": 1 - sum(f.recover_s or f.bound_s for f in struck if f) / (STORM_S * len(struck)),
    }


def stretch(job: Job, kind: str | None, rank: int) -> tuple[float, Fault | None]:
    """Steps a second over one stretch, perhaps with a fault in it."""
    begun, first, fault = time.monotonic(), job.top(), None
    if kind is not None:
        time.sleep(random.uniform(0, STORM_S - 6))
        fault = job.hurt(kind, rank, 60)
    time.sleep(max(0.0, begun + STORM_S - time.monotonic()))
    return (job.top() - first) / (time.monotonic() - begun), fault


def stage_medians(incidents: list[dict]) -> dict[str, float]:
    """How long each stage took, in the middle: seconds by stage, the first counted from the fault itself."""
    spent: dict[str, list[float]] = defaultdict(list)
    for incident in incidents:
        last = 0.0
        for stage, at in sorted(incident["stages"].items(), key=lambda item: item[1]):
            spent[stage].append(at - last)
            last = at
    return {stage: median(values) for stage, values in spent.items()}
