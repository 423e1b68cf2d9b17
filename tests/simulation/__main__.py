"""`python -m tests.simulation SEED [--trace] [--last N]`: replay one seed; `FROM TO`: run many."""

from __future__ import annotations

import argparse
import time

from .world import simulate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Replay simulated seeds.")
    parser.add_argument("seed", type=int)
    parser.add_argument("to", type=int, nargs="?", help="run all seeds from SEED up to this one")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--last", type=int, default=0, help="only the last N lines of the trace")
    args = parser.parse_args()
    if args.to is not None:
        many(args.seed, args.to)
        return
    outcome = simulate(args.seed, trace=True)
    lines = outcome.trace or []
    if args.trace or outcome.broken:
        print("\n".join(lines[-args.last :] if args.last else lines))
    print(outcome.scenario)
    print(
        f"seed {args.seed}: {outcome.phase}, {outcome.events} events, {outcome.virtual_s:.2f} s, {outcome.digest[:16]}"
    )
    print(outcome.broken or "every promise was kept")
    raise SystemExit(1 if outcome.broken else 0)


def many(first: int, last: int) -> None:
    started, events, phases, bad = time.process_time(), 0, {}, []
    for seed in range(first, last):
        outcome = simulate(seed)
        events += outcome.events
        phases[outcome.phase] = phases.get(outcome.phase, 0) + 1
        if outcome.broken:
            bad.append(seed)
            print(f"seed {seed}: {outcome.broken}")
    took = time.process_time() - started
    print(
        f"{last - first} seeds, {events} events in {took:.1f} s ({(last - first) / took:.0f}/s): {phases}, {len(bad)} bad"  # noqa: E501
    )


if __name__ == "__main__":
    main()
