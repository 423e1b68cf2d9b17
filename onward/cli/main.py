"""`onward ...`: one command, a verb each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from onward import __version__
from onward.core.intake import FREQUENCY, read_frequency, read_silenced
from onward.core.policy import DEFAULT_POLICIES, closest, parse_policies
from onward.core.published import Level, Rules
from onward.ending import exit_code_of
from onward.errors import UsageError, WireError

EPILOG = """\b
Exit codes:
  0      the job succeeded, or the command did what was asked
  1      the job failed, a claim of the demo did not hold, or a fault was not seen in time
  2      the command line is wrong; every problem is listed
  128+n  ended by signal n (130: Ctrl-C)
"""
LONGEST_HELP = 200
JOB = "JOB is the name of a job or the pid of its launcher; it can be left out when only one runs."


class _Verbs(click.Group):
    """In the order in which people need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class _Chapters(_Verbs):
    """The help lists jobs first, then what is about clusters, each with a whole sentence."""

    CLUSTER = ("up", "down", "operator", "scheduler", "validate", "apply", "get", "describe", "logs", "wait", "delete")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        clusters = [v for v in self.CLUSTER if v in self.commands]
        jobs = [v for v in self.commands if v not in clusters]
        for title, verbs in (("Jobs", jobs), ("A Kubernetes, on this machine or elsewhere", clusters)):
            with formatter.section(title):
                formatter.write_dl([(v, self.commands[v].get_short_help_str(LONGEST_HELP)) for v in verbs])


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Chapters, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, message="onward %(version)s", help="Print the version.")
def commands() -> None:
    """Distributed training that only moves onward: a dead, failing or hung process costs a moment and no step.

    \b
      onward run --nproc-per-node 4 train.py --epochs 3    run a script as torchrun does
      onward status                                        see how it stands
      onward chaos kind=kill,rank=2                        rehearse a fault
      onward fault list                                    see what is known to be wrong
      onward up; onward apply -f job.yaml                  a Kubernetes on this machine, and a job on it
    """


@commands.command("run", add_help_option=False)
def _run_for_help() -> None:
    """Run a script as torchrun does, and keep it running."""


def _output(function: click.decorators.FC) -> click.decorators.FC:
    how = click.Choice(["text", "json"])
    return click.option("-o", "--output", type=how, default="text", show_default=True, help="What to print.")(function)


@commands.command()
@click.option("--quick", is_flag=True, help="A smaller model and fewer steps, for tests.")
@click.option("--view", type=click.Choice(["auto", "live", "plain"]), default="auto", show_default=True)
def demo(quick: bool, view: str) -> int:
    """Train a GPT, cause faults, check that nothing was lost."""
    from onward.cli.demo import demo as go

    return go(quick, view)


@commands.command(epilog=JOB)
@click.argument("words", nargs=-1, metavar="[JOB] FAULT...")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait until the fault is seen to happen.")
def chaos(words: tuple[str, ...], wait: float) -> int:
    """Cause a fault in a running job, and wait until it is seen.

    A FAULT is kind=KIND,rank=RANK with, if wanted, step=N (else: now), at=MOMENT, when=recovery, seconds=S, code=N and
    text=TEXT, for kind=slow also delay=S and steps=N; or a YAML file with a list of such. The same words work at a
    start, with onward run --chaos.

    \b
      onward chaos kind=kill,rank=2
      onward chaos myjob kind=exception,rank=1,step=500,at=optimizer
      onward chaos kind=kill-manager

    Nodes of the cluster that onward up has started: NODE is stopped, started, cut off, healed, drained or reported as
    sub-healthy by onward chaos node stop|start|partition|heal|drain|sub-health NODE.
    """
    if words and words[0] == "node":
        from onward.cli.cluster import chaos_node

        return chaos_node(words[1:])
    from onward.cli.chaos import chaos as go

    return go(words, wait)


@commands.command()
@_output
def ps(output: str) -> int:
    """List the jobs that run on this machine."""
    from onward.cli.look import ps as go

    return go(output)


@commands.command(epilog=JOB)
@click.argument("job", required=False)
@_output
def status(job: str | None, output: str) -> int:
    """Show how a running job stands, and the cluster of onward up.

    With -o json and no JOB, where there is a cluster: the cluster, and all jobs under `jobs`.
    """
    from onward.cli.look import ps as list_jobs
    from onward.cli.look import status as go

    if job is None:
        from onward.agent.control import running_jobs
        from onward.cli.cluster import cluster_facts, cluster_is_here, cluster_status
        from onward.cli.look import listed_jobs
        from onward.cli.report import as_json

        if cluster_is_here() and output == "json":
            code, facts = cluster_facts()
            print(as_json({**facts, "jobs": listed_jobs()}))
            return code
        if cluster_is_here():
            code = cluster_status()
            if not running_jobs():
                return code
            print()
            try:
                return max(code, go(job, output))
            except (UsageError, WireError):  # more than one, gone by now, or just ending
                return max(code, list_jobs(output))
    return go(job, output)


class _FaultVerbs(_Verbs):
    """One that does not exist is refused as any other word is."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise UsageError(_unknown(args[0], list(self.commands), "onward fault"))
        return super().resolve_command(ctx, args)


@commands.group(cls=_FaultVerbs, epilog=JOB)
def fault() -> None:
    """Publish what others have found wrong with a node, rank or device of a running job, on any of its nodes.

    \b
      onward fault report --node 1 --level separate --code 8C1F8609 --text "fan broken"
      onward fault report --rank 3 --level sub-health --code xid-63 --for 10m
      onward fault clear --code xid-63
    """


@fault.command("report", epilog=JOB)
@click.argument("job", required=False)
@click.option("--level", default="", help=f"What follows: {', '.join(Level)}; or MindCluster's name for it.")
@click.option("--code", default="", help="What kind of fault: it is counted, silenced and cleared by this.")
@click.option("--node", default="", help="The node: its number, or its host, address or id.")
@click.option("--rank", default="", help="The rank.")
@click.option("--device", default="", help="The device of that node.")
@click.option("--text", default="", help="What people should know.")
@click.option("--for", "lasts", default="", metavar="TIME", help="Over by itself after 60, 90s, 5m, 2h or 1d.")
@_output
def fault_report(job: str | None, output: str, **words: str) -> int:
    """Publish a fault."""
    from onward.cli.fault import fault as go

    return go(job, output, op="report", **words)


@fault.command("clear", epilog=JOB)
@click.argument("job", required=False)
@click.option("--id", "id", default="", help="The fault with this number, as in onward fault list.")
@click.option("--code", default="", help="Those with this code.")
@click.option("--node", default="", help="Those of this node.")
@click.option("--rank", default="", help="Those of this rank.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_output
def fault_clear(job: str | None, output: str, everything: bool, **words: str) -> int:
    """Say that published faults are over."""
    from onward.cli.fault import fault as go

    return go(job, output, op="clear", everything=everything, **words)


@fault.command("list", epilog=JOB)
@click.argument("job", required=False)
@_output
def fault_list(job: str | None, output: str) -> int:
    """List the published faults that stand."""
    from onward.cli.fault import fault as go

    return go(job, output, op="list")


@commands.command()
@click.argument("directory", type=click.Path(path_type=Path), default="ckpt")
@click.option("--quick", is_flag=True, help="Look at names and sizes only; do not read the files.")
@_output
def checkpoints(directory: Path, quick: bool, output: str) -> int:
    """List the checkpoints in DIRECTORY (default ckpt), newest first, and say which of them are valid."""
    from onward.cli.checkpoints import checkpoints as go

    return go(directory, quick, output)


@commands.command()
@click.option("--listen", default="127.0.0.1", metavar="HOST[:PORT]", help="Where agents find it (port 9601).")
@click.option("--nodes", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Nodes of the job.")
@click.option("--nproc-per-node", type=click.IntRange(1, 4096), default=1, show_default=True, help="Ranks on each.")
@click.option(
    "--token-file",
    "--join-token-file",
    type=click.Path(path_type=Path),
    envvar="ONWARD_JOIN_TOKEN_FILE",
    help="File with the shared secret of the job.",
)
@click.option(
    "--join-token",
    default="",
    envvar="ONWARD_JOIN_TOKEN",
    help="The shared secret itself; better in the environment, as ONWARD_JOIN_TOKEN.",
)
@click.option("--recover-strategy", default=DEFAULT_POLICIES, show_default=True, metavar="NAME,...")
@click.option("--min-nodes", type=click.IntRange(1, 100_000), help="Go on with so few (elastic-training).")
@click.option("--wait-reschedule-timeout", type=click.FloatRange(0.0), default=270.0, show_default=True)
@click.option("--node-timeout", type=click.FloatRange(0.0, min_open=True), default=5.0, show_default=True)
@click.option("--fail-stop-after", type=click.FloatRange(0.0), default=0.0, help="Silence that is proof of death.")
@click.option("--sub-healthy-strategy", type=click.Choice(["ignore", "hotSwitch"]), default="ignore")
@click.option("--max-restarts", type=click.IntRange(0), default=0, help="Process restarts (absent or 0: 32767).")
@click.option("--hang-floor", type=click.FloatRange(0.0, min_open=True), default=0.7, show_default=True)
@click.option("--silence-fault", default="", metavar="CODE[:S],...", help="Published faults that are shown only.")
@click.option("--fault-frequency", default=FREQUENCY, show_default=True, metavar="TIMES/WINDOW")
@click.option("--journal", type=click.Path(path_type=Path), help="History of the job; a new manager goes on from it.")
def manager(
    listen: str,
    nodes: int,
    nproc_per_node: int,
    token_file: Path | None,
    join_token: str,
    recover_strategy: str,
    min_nodes: int | None,
    wait_reschedule_timeout: float,
    node_timeout: float,
    fail_stop_after: float,
    sub_healthy_strategy: str,
    max_restarts: int,
    hang_floor: float,
    silence_fault: str,
    fault_frequency: str,
    journal: Path | None,
) -> int:
    """Run the manager of one job, for agents on several nodes.

    An address that other machines can reach is refused without --token-file or --join-token.
    """
    from onward.cli.flag_table import UNLIMITED_RESTARTS
    from onward.cli.manage import ManageSettings, manage, parse_listen
    from onward.core.job import Limits

    host, port = parse_listen(listen)
    return manage(
        ManageSettings(
            host=host,
            port=port,
            nodes=nodes,
            nproc=nproc_per_node,
            token_file=token_file,
            join_token=join_token,
            policies=parse_policies(recover_strategy),
            limits=Limits(
                max_restarts=max_restarts or UNLIMITED_RESTARTS,
                reschedule_s=wait_reschedule_timeout,
                min_nodes=min_nodes or nodes,
                hot_switch=sub_healthy_strategy == "hotSwitch",
            ),
            node_timeout_s=node_timeout,
            fail_stop_s=fail_stop_after,
            hang_floor_s=hang_floor,
            rules=Rules(read_silenced(silence_fault), *read_frequency(fault_frequency)),
            journal=journal,
        )
    )


def _cluster_verbs() -> None:
    from onward.cli.cluster import CLUSTER_VERBS
    from onward.cli.objects import OBJECT_VERBS
    from onward.cli.scheduling import scheduler

    for verb in (*CLUSTER_VERBS, *OBJECT_VERBS, scheduler):
        commands.add_command(verb)


_cluster_verbs()


@commands.command()
def version() -> int:
    """Print the version."""
    print(f"onward {__version__}")
    return 0


def _open_streams() -> None:
    """Where one of them is closed: what is opened next would get its number, and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main(argv: Sequence[str] | None = None) -> int:
    _open_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    return exit_code_of(lambda: _dispatch(args))


def _dispatch(args: list[str]) -> int:
    verbs = list(commands.commands)
    if args and args[0] == "run":
        from onward.cli.flag_table import RUN_HELP
        from onward.cli.line import HelpRequested
        from onward.cli.run import run

        try:
            return run(args[1:])
        except HelpRequested:
            print(RUN_HELP, end="")
            return 0
    if args and not args[0].startswith("-") and args[0] not in verbs:
        raise UsageError(_unknown(args[0], verbs))
    if not args:
        args = ["--help"]
    try:
        answer = commands.main(args, prog_name="onward", standalone_mode=False)
    except click.ClickException as e:
        context = getattr(e, "ctx", None)
        help_at = f" ({context.command_path} --help tells more)" if context is not None else ""
        raise UsageError(f"{e.format_message()}{help_at}") from e
    except click.Abort:
        return 130
    return answer if isinstance(answer, int) else 0


def _unknown(word: str, verbs: list[str], prefix: str = "onward") -> str:
    meant = closest(word, verbs)
    if meant is not None:
        return f"unknown command {word!r}; did you mean {prefix} {meant}?"
    if word.endswith(".py"):
        return f"unknown command {word!r}; to run a script write: onward run {word}"
    return f"unknown command {word!r}; the commands are {', '.join(verbs)} ({prefix} --help)"


if __name__ == "__main__":
    sys.exit(main())
