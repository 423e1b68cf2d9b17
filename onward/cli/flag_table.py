"""The flags of `onward run`: how each is spelt, which variable stands for it, and what the help says."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from onward.core.intake import FREQUENCY
from onward.core.policy import DEFAULT_POLICIES

UNLIMITED_RESTARTS = 32767  # what --max-restarts means when it is absent or 0


@dataclass(frozen=True)
class Flag:
    """One option: how it is spelt and what the help says. `name` is also its key in `Line.given`."""

    name: str
    help: str
    value: str = ""  # what stands for the value in the help; empty: a switch
    short: str = ""
    alias: str = ""
    env: tuple[str, ...] = ()


# What an operator tells a pod about its place, under names of our own: torchrun in that pod must not take them.
PLACE = ("nnodes", "nproc-per-node", "node-rank", "local-addr", "rdzv-endpoint", "standby")


def _torchrun(name: str, help: str, value: str = "", short: str = "") -> Flag:
    upper = name.upper().replace("-", "_")
    return Flag(name, help, value, short, env=(f"PET_{upper}", *([f"ONWARD_{upper}"] if name in PLACE else [])))


TORCHRUN = (
    _torchrun("nnodes", "Nodes of the job (default 1).", "N|MIN:MAX"),
    _torchrun("nproc-per-node", "Ranks on this node: a number, auto, gpu, npu or cpu (default 1).", "N"),
    _torchrun("node-rank", "Which node this is, from 0 (default 0).", "N"),
    _torchrun("master-addr", "Address of node 0 (default 127.0.0.1).", "HOST"),
    _torchrun("master-port", "Port on node 0 (default: any free one on a single node, else 29500).", "PORT"),
    _torchrun("local-addr", "Address of this node (default: found out).", "HOST"),
    _torchrun("standalone", "One node, nobody to meet."),
    _torchrun("rdzv-endpoint", "Where the nodes of the job meet, and where else to look.", "HOST[:PORT],..."),
    _torchrun("rdzv-id", "Id of the job; ranks see it as TORCHELASTIC_RUN_ID (default none).", "ID"),
    _torchrun("max-restarts", f"Process restarts before the job fails (absent or 0: {UNLIMITED_RESTARTS}).", "N"),
    _torchrun("role", "Name of this kind of rank (default: default).", "NAME"),
    _torchrun("module", "SCRIPT is a module name, run as python -m does.", short="-m"),
    _torchrun("no-python", "SCRIPT is a program, executed as it is."),
    _torchrun("run-path", "SCRIPT is a Python file; wins over --no-python and --module."),
    _torchrun("log-dir", "Directory for the logs of the ranks.", "DIR"),
    _torchrun("redirects", "Streams to log files only: 0 none, 1 out, 2 err, 3 both; by rank: 0:1,1:3.", "SPEC", "-r"),
    _torchrun("tee", "The same, but to log files and screen.", "SPEC", "-t"),
    _torchrun("local-ranks-filter", "Show the output of these local ranks only.", "N,N,..."),
    _torchrun("signals-to-handle", "Signals that end the job in order.", "NAME,NAME,..."),
    _torchrun("virtual-local-rank", "Each rank sees one device, and LOCAL_RANK 0."),
)
IGNORED = (
    _torchrun("rdzv-backend", "onward brings its own rendezvous.", "NAME"),
    _torchrun("rdzv-conf", "onward brings its own rendezvous.", "K=V,..."),
    _torchrun("monitor-interval", "Nothing is polled.", "SECONDS"),
    _torchrun("start-method", "Ranks are forked from a warm parent (see --no-warm).", "NAME"),
    _torchrun("event-log-handler", "Incidents are recorded by onward.", "NAME"),
    _torchrun("duplicate-stdout-filters", "Look in the log files.", "TEXT,..."),
    _torchrun("duplicate-stderr-filters", "Look in the log files.", "TEXT,..."),
    Flag("logs-specs", "Log files are onward's.", "NAME"),
    Flag("numa-binding", "Bind ranks outside, for instance with numactl.", "MODE"),
)
OWN = (
    Flag(
        "recover-strategy",
        "Allowed policies: retry, recover-in-place, recover, elastic-training, dump, exit"
        f" (default {DEFAULT_POLICIES}). Their order is fixed.",
        "NAME,NAME,...",
        env=("ONWARD_RECOVER_STRATEGY",),
    ),
    Flag("retry-on", "An error with this text is cured by a retry. Repeatable.", "REGEX"),
    Flag("spares", "Parked replacements: none, one, or each (default each).", "WHICH", env=("ONWARD_SPARES",)),
    Flag("preload", "Modules imported before ranks are forked. Repeatable.", "MODULE,..."),
    Flag("no-warm", "Start each rank cold, as a new interpreter; implies --spares none."),
    Flag("hang-floor", "No rank is called hung sooner (default 0.7).", "SECONDS", env=("ONWARD_HANG_FLOOR",)),
    Flag(
        "grace",
        "Time between SIGTERM and SIGKILL (default 10).",
        "SECONDS",
        alias="shutdown-timeout",  # torchrun's name for it
        env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    ),
    Flag(
        "silence-fault",
        "Published faults with these codes are shown only; with :SECONDS, for so long. Repeatable.",
        "CODE[:S],...",
        env=("ONWARD_SILENCE_FAULT",),
    ),
    Flag(
        "fault-frequency",
        f"A code that is published so often for a node isolates it (default {FREQUENCY}); off for never.",
        "TIMES/WINDOW",
        env=("ONWARD_FAULT_FREQUENCY",),
    ),
    Flag("dump-dir", "Checkpoints of a script that names no directory: dumps go there, and are loaded.", "DIR"),
    Flag("chaos", "Inject a fault, such as rank=2,step=50,kind=kill, or a YAML file. Repeatable.", "SPEC"),
    Flag(
        "job-name",
        "Name in messages and directories (default: the rdzv id).",
        "NAME",
        alias="job-id",
        env=("ONWARD_JOB_NAME",),
    ),
    Flag("standby", "This node only takes the place of a lost one.", env=("ONWARD_STANDBY",)),
    Flag(
        "manager-port",
        "Where this node would start a manager, were it the next to (default: any port).",
        "PORT",
        env=("ONWARD_MANAGER_PORT",),
    ),
    Flag(
        "manager",
        "Where `onward manager` listens (default: node 0); each of a list is tried.",
        "HOST:PORT,...",
        env=("ONWARD_MANAGER",),
    ),
    Flag(
        "token-file",
        "File with the shared secret of a job on several nodes.",
        "FILE",
        alias="join-token-file",
        env=("ONWARD_JOIN_TOKEN_FILE",),
    ),
    Flag("join-token", "The shared secret itself; better in the environment.", "TEXT", env=("ONWARD_JOIN_TOKEN",)),
    Flag("join-timeout", "How long to wait for the other nodes at the start (default 600).", "SECONDS"),
    Flag(
        "sub-healthy-strategy",
        "What is done about a node that is worse than it should be: ignore, or hotSwitch (default ignore).",
        "NAME",
        env=("ONWARD_SUB_HEALTHY_STRATEGY",),
    ),
    Flag("node-timeout", "No silent node is called lost sooner (default 5).", "SECONDS"),
    Flag("fail-stop-after", "Silence of a node for so long is proof of its death (default: never).", "SECONDS"),
    Flag(
        "wait-reschedule-timeout",
        "How long to wait for a node in the place of a lost one (default 270).",
        "SECONDS",
        env=("ONWARD_WAIT_RESCHEDULE_TIMEOUT",),
    ),
    Flag("view", "live (redrawn), plain (lines) or auto (default auto).", "HOW"),
    Flag("output", "Summary at the end: text or json (default text).", "HOW", short="-o"),
    Flag("quiet", "Print nothing but the output of the ranks and errors."),
    Flag("help", "Print this.", short="-h"),
)
FLAGS = TORCHRUN + IGNORED + OWN
BY_SPELLING = {
    **{f"--{name}": flag for flag in FLAGS for name in (flag.name, flag.alias) if name},
    **{flag.short: flag for flag in FLAGS if flag.short},
}
REPEATABLE = ("retry-on", "preload", "chaos", "silence-fault")


def _help() -> str:
    sections = [
        ("Flags of torchrun (also spelt with _; defaults also from PET_... as with torchrun):", TORCHRUN),
        ("Flags of onward:", OWN),
        ("Flags of torchrun that are accepted and have no effect here:", IGNORED),
    ]
    lines = [
        "Usage: onward run [flags] SCRIPT [arguments of the script]",
        "",
        "Runs SCRIPT on several ranks, as torchrun does, and keeps it running: a dead, failing or hung rank is",
        "mended or replaced, and the step it was in is run again.",
        "",
        "  onward run --nproc-per-node 4 train.py --epochs 3",
        "  onward run --nproc-per-node 4 --chaos rank=2,step=50,kind=kill train.py",
    ]
    for title, flags in sections:
        lines += ["", title]
        for flag in flags:
            names = [flag.short, f"--{flag.name}", flag.alias and f"--{flag.alias}"]
            spelling = f"  {', '.join(name for name in names if name)} {flag.value}".rstrip()
            variables = [variable for variable in flag.env if variable.startswith("ONWARD_")]
            text = flag.help + "".join(f" Environment: {variable}." for variable in variables)
            wrapped = textwrap.wrap(text, 110, initial_indent=" " * 34, subsequent_indent=" " * 34)
            if len(spelling) < 33:
                wrapped[0] = spelling.ljust(34) + wrapped[0].lstrip()
            else:
                wrapped.insert(0, spelling)
            lines += wrapped
    return "\n".join(lines) + "\n"


RUN_HELP = _help()
