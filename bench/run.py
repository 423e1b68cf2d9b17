"""onward against its peers, on this machine, in one run: prints a table and writes JSON.

    make bench                                            # about 15 minutes
    .venv/bin/python bench/run.py --quick                 # a smoke run of about two
    .venv/bin/python bench/run.py --peer dlrover=VENV     # one more launcher, from another environment

Seconds on a small shared machine say little; the ratio to a peer that ran in turns with it says more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import measure
import nodes
import switch
from jobs import PEERS, Launcher, peer
from measure import Bench, Samples, median, p95, stage_medians

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    ratio: str = ""
    onward: str = ""
    peer: str = ""
    target: str = ""
    verdict: str = ""


def main() -> int:
    args = parse()
    random.seed(args.seed)
    plan = measure.QUICK if args.quick else measure.FULL
    begun = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="onward-bench-"))
    found, missing = peers(args.peer)
    bench = Bench(plan, work, found, lambda text: print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True))
    wanted = args.only.split(",") if args.only else list(SECTIONS)
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for name in wanted:
        try:
            more, raw[name] = SECTIONS[name](bench)
        except Exception as error:  # one section that fails must not take the others' results with it
            more, raw[name] = [Row(name, verdict=f"failed: {str(error).splitlines()[0]}")], str(error)
            bench.say(f"{name} FAILED: {error}")
        rows += more
    rows += [Row(name, verdict=why) for name, why in missing.items()]
    if args.keep:
        print(f"records and logs are in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    head = machine() | {"quick": args.quick, "seed": args.seed, "took_s": round(time.monotonic() - begun)}
    print_table(rows, head)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": head, "rows": [dataclasses.asdict(row) for row in rows], "raw": raw}
    args.json.write_text(json.dumps(data, indent=1, default=plain_data))
    print(f"written to {args.json}")
    return 0 if not any(row.verdict.startswith("failed") for row in rows) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: one or two faults of each kind")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "latest.json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=VENV", help=f"NAME: {', '.join(PEERS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the ranks struck and the moments between")
    parser.add_argument("--keep", action="store_true", help="keep the records and logs of all jobs")
    args = parser.parse_args()
    unknown = [name for name in (args.only or "").split(",") if name and name not in SECTIONS]
    if unknown:
        parser.error(f"--only {unknown[0]}: there is {', '.join(SECTIONS)}")
    return args


def peers(given: list[str]) -> tuple[list[Launcher], dict[str, str]]:
    """The launchers asked for, and why others are not there."""
    found: list[Launcher] = []
    missing = {}
    for text in given:
        name, _, venv = text.partition("=")
        if name not in PEERS:
            missing[name] = "not known here: needs a training script of its own"
        elif (launcher := peer(name, Path(venv))) is None:
            missing[name] = "not installed"
        else:
            found.append(launcher)
    return found, missing


# ---------------------------------------------------------------------------------------------------- sections


def faults(bench: Bench) -> tuple[list[Row], object]:
    seen = measure.faults(bench)
    rows = []
    limits = {"kill": (0.5, 1), "retry": (0.1, 1), "stop": (1.0, 3)}
    for kind, (fixed, steps) in limits.items():
        ours, theirs = seen["onward", kind], seen["torchrun", kind]
        limit = fixed + steps * median(ours.step_s)
        target = f"<= {fixed:g} s + {steps} step = {limit:.2f} s, 0 lost" + (", >= 10x" if kind == "kill" else "")
        good = judge(ours, limit, theirs if kind == "kill" else None)
        rows.append(Row(WORDS[kind], times(theirs, ours), cost(ours), cost(theirs, "torchrun"), target, good))
        if kind == "stop":
            named = sum(i["blamed"] == [i["rank"]] for i in ours.incidents)
            verdict = "met" if named == len(ours.faults) > 0 else "not met"
            rows.append(Row("  guilty rank named", "", f"{named} of {len(ours.faults)}", "", "all", verdict))
        for other in (launcher.name for launcher in bench.peers):
            rows.append(Row(f"  against {other}", times(seen[other, kind], ours), "", cost(seen[other, kind], other)))
            if other == "torchft" and seen[other, kind].seconds:  # it goes on with fewer ranks until then
                pauses = [median([f.others_s for f in found.faults]) for found in (seen[other, kind], ours)]
                rows.append(Row("  the other ranks stood", times_of(*pauses), sec(pauses[1]), sec(pauses[0])))
        rows.append(stages_row(ours))
    stock = seen["torchrun, stock", "kill"]
    rows.append(Row("kill, torchrun as it comes", times(stock, seen["onward", "kill"]), "", cost(stock, "torchrun")))
    return rows, {f"{name}/{kind}": samples for (name, kind), samples in seen.items()}


def slow_setup(bench: Bench) -> tuple[list[Row], object]:
    if not bench.plan.slow_kills:
        return [], None
    seen = measure.slow_setup(bench)
    ours, theirs = seen["onward", "kill"], seen["torchrun", "kill"]
    limit = 0.5 + median(ours.step_s)
    row = Row(
        "kill, 5 s of set-up in the script",
        times(theirs, ours),
        cost(ours),
        cost(theirs, "torchrun"),
        f"<= 0.5 s + 1 step = {limit:.2f} s, 0 lost, >= 10x",
        judge(ours, limit, theirs),
    )
    return [row, stages_row(ours)], {f"{name}/{kind}": samples for (name, kind), samples in seen.items()}


def no_spare(bench: Bench) -> tuple[list[Row], object]:
    ours = measure.without_spare(bench)["onward, no spares", "kill"]
    ready = [i["stages"]["mend"] for i in ours.incidents if "mend" in i["stages"]]
    return [
        Row("kill, --spares none", onward=cost(ours)),
        Row("  death to replacement at the fence", onward=f"{ms(median(ready))} / {ms(p95(ready))}"),
        stages_row(ours),
    ], ours


def step_cost(bench: Bench) -> tuple[list[Row], object]:
    small, large = measure.batch_for(bench, [0.02, 0.5])
    rows, raw = [], {}
    for label, batch, block in (("20 ms", small, 5), ("0.5 s", large, 1)):
        if block == 1 and not bench.plan.step_rounds:
            continue  # a smoke run has no time to see anything here
        found = measure.same_process_cost(bench, batch, block)
        raw[f"{label}, same process"] = found
        pairs = f"{found['pairs']} pairs"
        rows.append(difference_row(f"added to a step of {label}, same processes", found, pairs))
        rows.append(difference_row("  in CPU time of a rank", found["cpu"], pairs))
        if bench.plan.step_rounds:
            found = raw[f"{label}, runs in turn"] = measure.step_cost(bench, batch)
            rounds = f"{len(found['rounds'])} rounds"
            rows.append(difference_row(f"added to a step of {label}, runs in turn", found, rounds))
            verdict = three_ways(found["own_median_s"], found["own_p95_s"], 0.0005)
            own = f"{ms(found['own_median_s'], 3)} / {ms(found['own_p95_s'], 3)}"
            rows.append(Row(f"own time in a step of {label}", "", own, "", "<= 0.5 ms", verdict))
    return rows, raw


def state_size(bench: Bench) -> tuple[list[Row], object]:
    rows, raw = [], []
    for width, layers in bench.plan.sizes:
        if not measure.room_for(width, layers):
            rows.append(
                Row(f"kill, {width * width * layers / 1e6:.0f}M parameters", verdict="left out: too little memory")
            )
            continue
        found = measure.state_size(bench, width, layers)
        raw.append(found)
        rate, copy = found["form_bytes_per_s"] / 1e9, found["memcpy_bytes_per_s"] / 1e9
        recover = [s for s in found["recover_s"] if s is not None]
        ours = f"{sec(median(recover))} / {sec(p95(recover))} (n={len(recover)})"
        limit = 0.5 + found["step_s"] + found["state_bytes"] / found["memcpy_bytes_per_s"]
        rows.append(
            Row(
                f"kill, {found['parameters'] / 1e6:.0f}M parameters ({found['state_bytes'] / 1e9:.2f} GB of state)",
                f"{rate / copy:.2f} of memcpy",
                f"{ours}; form {ms(found['form_s'])}, {rate:.1f} GB/s",
                f"memcpy {copy:.1f} GB/s",
                f"<= 0.5 s + 1 step + state/memcpy = {limit:.2f} s",
                three_ways(median(recover), p95(recover), limit) if recover else "not met",
            )
        )
        rows.append(Row("  of that, by stage", onward=stages_text(found["stages"])))
    return rows, raw


def storm(bench: Bench) -> tuple[list[Row], object]:
    found = measure.storm(bench)
    calm, hurt = (" ".join(f"{rate:.1f}" for rate in found[name]) for name in ("calm", "storm"))
    low, high = found["interval"]
    return [
        Row(
            f"storm: a kill or a retry every {measure.STORM_S:g} s",
            f"goodput {found['goodput']:.1%}",
            f"{hurt} steps/s [{low:.0%} .. {high:.0%}]; time not in recovery {found['recovery_alone']:.1%}",
            f"without faults {calm} steps/s",
            ">= 95 %",
            "met" if found["goodput"] >= 0.95 else "not met",
        )
    ], found


def storm_with_hangs(bench: Bench) -> tuple[list[Row], object]:
    found = measure.storm(bench, ("stop", "kill", "retry"))
    low, high = found["interval"]
    return [
        Row(
            f"storm: a kill, a retry or a stopped rank every {measure.STORM_S:g} s",
            f"goodput {found['overall']:.1%}",
            f"median [{low:.0%} .. {high:.0%}]; time not in recovery {found['recovery_alone']:.1%}",
            "the same job, without faults in between",
            ">= 85 %",
            "met" if found["overall"] >= 0.85 else "not met",
        )
    ], found


def hot_switch(bench: Bench) -> tuple[list[Row], object]:
    rows, raw = [], []
    for width, layers in bench.plan.switches:
        bench.say(f"hot switch: width={width} layers={layers}")
        found = switch.measure(bench.directory(), width=width, layers=layers, batch=16)
        raw.append(found)
        step, pause = found["step_s"], found["pause_s"]
        rows.append(
            Row(
                f"hot switch, {width * width * layers / 1e6:.1f}M parameters, 2 nodes of 1 rank",
                f"{pause / step:.2f} of a step",
                f"{ms(pause)}, {'followed' if found['followed'] else 'state moved at the swap'}",
                f"a step {ms(step)}, beside one that follows {ms(found['step_beside_s'])}",
                "< 1 step",
                "met" if pause < step else "not met",
            )
        )
    return rows, raw


def lost_node(bench: Bench) -> tuple[list[Row], object]:
    bench.say("lost nodes, with one standing by")
    found, incidents, step = nodes.lost_nodes(bench.directory(), bench.plan.node_losses, **measure.FAULT_JOB)
    seen = Samples(faults=found, step_s=[step])
    for fault in found:
        seen.incidents += measure.incident_of(fault, incidents)
    target = "no target; 0 lost"
    return [
        Row("a node of 2 x 2 ranks lost, one stands by", onward=cost(seen), target=target, verdict=no_loss(seen)),
        stages_row(seen),
    ], seen


def elastic(bench: Bench) -> tuple[list[Row], object]:
    bench.say("four nodes, three, four")
    found = nodes.shrink_and_grow(bench.directory(), batch=16)
    step, waited = f"a step {ms(found['step_s'])}, of three {ms(found['step_shrunk_s'])}", found["waited_s"]
    return [
        Row(
            "shrink, 4 -> 3 nodes",
            onward=f"{sec(found['shrink_s'])}, {waited:g} s of it the wait for a node",
            peer=step,
        ),
        Row("grow, 3 -> 4 nodes", onward=ms(found["grow_s"]), peer=step),
    ], found


def dump(bench: Bench) -> tuple[list[Row], object]:
    rows, raw = [], []
    for width, layers in bench.plan.dumps:
        out = bench.directory()
        options = {"width": width, "layers": layers, "batch": 8, "dir": out / "saved"}
        command = (*bench.launchers["onward, no spares"].command, "--recover_strategy", "dump,exit")
        bench.say(f"dump: width={width} layers={layers}")
        with measure.Job(measure.Launcher("onward", command, "train_onward.py"), out, ranks=2, **options) as job:
            found = nodes.dump(job, out / "saved")
        raw.append(found)
        rate, disk = found["bytes"] / found["dump_s"] / 1e6, found["bytes"] / found["disk_s"] / 1e6
        rows.append(
            Row(
                f"dump of {found['bytes'] / 1e6:.0f} MB after a kill",
                f"{found['dump_s'] / found['disk_s']:.1f}x the disk's own time",
                f"{ms(found['dump_s'])}, {rate:.0f} MB/s; {ms(found['whole_s'])} from the kill",
                f"write and fsync {ms(found['disk_s'])}, {disk:.0f} MB/s",
            )
        )
    return rows, raw


def node_storm(bench: Bench) -> tuple[list[Row], object]:
    lasts, ranks = bench.plan.node_storm_s, measure.RANKS
    gusts = nodes.trace(1, lasts, measure.STORM_S, ranks)
    bench.say(f"storm of {lasts:g} s: {', '.join(f'{g.kind} {g.rank} at {g.after_s:.0f}' for g in gusts)}")
    with nodes.Nodes(bench.directory(), nodes=2, nproc=2, **measure.FAULT_JOB) as job:
        job.wait_steps(10, 300)
        job.wait_warm(job.out / "standby1.log")
        ours = nodes.weather(job, gusts, lasts)
    kills = [dataclasses.replace(g, kind="kill") for g in gusts if g.kind in ("kill", "node")]
    with bench.job("torchrun", **measure.FAULT_JOB) as job:
        job.wait_steps(10, 300)
        theirs = nodes.weather(job, kills, lasts)
    return [
        Row(
            f"storm with nodes: a fault every {measure.STORM_S:g} s, {lasts:g} s",
            f"goodput {ours['goodput']:.1%} against {theirs['goodput']:.1%}",
            f"{ours['faults']} faults, {sum(g.kind == 'node' for g in gusts)} lost nodes; {ours['steps']} steps",
            f"torchrun, the {theirs['faults']} kills of it alone; {theirs['steps']} steps",
        )
    ], {"trace": gusts, "onward": ours, "torchrun": theirs}


SECTIONS = {
    "faults": faults,
    "slow_setup": slow_setup,
    "no_spare": no_spare,
    "step_cost": step_cost,
    "state_size": state_size,
    "storm": storm,
    "storm_with_hangs": storm_with_hangs,
    "hot_switch": hot_switch,
    "lost_node": lost_node,
    "elastic": elastic,
    "dump": dump,
    "node_storm": node_storm,
}
WORDS = {"kill": "kill -9 of a random rank", "retry": "retryable error in one rank", "stop": "a rank stopped (SIGSTOP)"}


# ---------------------------------------------------------------------------------------------------- words


def judge(ours: Samples, limit: float, theirs: Samples | None) -> str:
    """Against a limit, at no step lost; where `theirs` is given, also ten times faster than that."""
    if ours.broken or ours.never or not ours.seconds or any(f.steps_lost for f in ours.faults):
        return "not met"
    if theirs is not None and theirs.seconds and median(theirs.seconds) < 10 * median(ours.seconds):
        return "not met"
    return three_ways(median(ours.seconds), p95(ours.seconds), limit)


def no_loss(ours: Samples) -> str:
    return "met" if ours.seconds and not ours.never and not any(f.steps_lost for f in ours.faults) else "not met"


def three_ways(middle: float, high: float, limit: float) -> str:
    return "met" if high <= limit else "met by the median only" if middle <= limit else "not met"


def cost(samples: Samples, name: str = "") -> str:
    parts = []
    if samples.seconds:
        lost = f"{samples.lost:g} lost"
        parts.append(f"{sec(median(samples.seconds))} / {sec(p95(samples.seconds))} (n={len(samples.seconds)}, {lost})")
    if samples.never:
        parts.append(f"{len(samples.never)}x did not recover in {samples.never[0].bound_s:g} s")
    if samples.broken:
        parts.append(f"{len(samples.broken)}x the job ended")
    return f"{name} {'; '.join(parts) or 'not measured'}".strip()


def times(theirs: Samples, ours: Samples) -> str:
    """The headline: how many times sooner than a peer."""
    if not ours.seconds:
        return ""
    if not theirs.seconds:
        return f"> {theirs.never[0].bound_s / median(ours.seconds):.0f}x" if theirs.never else ""
    return times_of(median(theirs.seconds), median(ours.seconds))


def times_of(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.0f}x" if ours > 0 and theirs > 0 else ""


def difference_row(what: str, found: dict, counted: str) -> Row:
    low, high = found["interval_s"]
    relative = found["difference_s"] / found["plain_s"] if found["plain_s"] else math.nan
    ours = f"{ms(found['difference_s'], 2)} [{ms(low, 2)} .. {ms(high, 2)}] on {ms(found['onward_s'], 1)} ({counted})"
    return Row(what, f"{relative:+.1%}", ours, f"plain DDP {ms(found['plain_s'], 1)}")


def stages_row(samples: Samples) -> Row:
    return Row("  of that, by stage", onward=stages_text(stage_medians(samples.incidents)))


def stages_text(stages: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms(seconds)}" for name, seconds in stages.items()) or "no incident was recorded"


def sec(seconds: float) -> str:
    return f"{seconds:.2f} s"


def ms(seconds: float, digits: int = 0) -> str:
    return f"{1000 * seconds:.{digits}f} ms"


def machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "load_1min": os.getloadavg()[0],
    }


def plain_data(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"cannot write a {type(value).__name__}")


def print_table(rows: list[Row], head: dict[str, object]) -> None:
    print("\n" + ", ".join(f"{name} {value}" for name, value in head.items()))
    print("4 ranks, gloo. Seconds are median / p95 from the fault until every rank is past the next step.\n")
    columns = [field.name for field in dataclasses.fields(Row)]
    cells = [columns, *([getattr(row, name) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


if __name__ == "__main__":
    sys.exit(main())
