"""`python -m onward.local up|down|status|chaos ...`: what the `onward` command calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onward.ending import exit_code_of
from onward.errors import UsageError
from onward.kube.access import local_state

ABOUT = {
    "up": "Start a Kubernetes on this machine, and wait until it is ready.",
    "down": "End the cluster and everything it started.",
    "status": "Show how the cluster stands.",
    "chaos": "Do to a node what happens to machines: stop, start, partition, heal, drain, sub-health.",
}


class _Parser(argparse.ArgumentParser):
    """Complains as the rest of onward does."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message} ({self.prog} --help tells more)")


def _parser() -> argparse.ArgumentParser:
    from onward.local.chaos import VERBS
    from onward.local.up import options

    parser = _Parser(prog="onward")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    added = {}
    for verb, text in ABOUT.items():
        name = "onward chaos node" if verb == "chaos" else f"onward {verb}"
        added[verb] = verbs.add_parser(verb, help=text, description=text, prog=name)
        added[verb].add_argument("--state", type=Path, metavar="DIR", help="where the cluster lives")
    options(added["up"])
    added["down"].add_argument("--keep", action="store_true", help="keep its objects for the next onward up")
    added["down"].add_argument("--grace", type=float, default=2.0, metavar="S", help="time for pods to end (default 2)")
    added["status"].add_argument("-o", "--output", choices=["text", "json"], default="text")
    added["chaos"].add_argument("what", choices=VERBS)
    added["chaos"].add_argument("node", help="the name of the node")
    added["chaos"].add_argument("--text", default="", help="for sub-health: what people should know")
    added["chaos"].add_argument("--no-wait", action="store_true", help="do not wait until a node is back")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code_of(lambda: _dispatch(argv))


def _dispatch(argv: list[str] | None) -> int:
    asked = _parser().parse_args(argv)
    state = (asked.state or local_state()).resolve()
    match asked.verb:
        case "up":
            from onward.local.up import up

            return up(asked, state)
        case "down":
            from onward.local.down import down

            return down(state, asked.keep, asked.grace)
        case "status":
            from onward.local.status import status

            return status(state, asked.output)
        case _:
            from onward.local.chaos import chaos

            return chaos(state, asked.what, asked.node, asked.text, not asked.no_wait)


if __name__ == "__main__":
    sys.exit(main())
