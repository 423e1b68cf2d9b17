"""The command line of `onward run`: torchrun's flags, in both spellings, and onward's own.

The parser is written by hand because three things matter that argparse does not give: a line written for torchrun works
unchanged (also its PET_* environment), all problems of a line are reported at once with a did-you-mean, and the help is
printed from the same table that is parsed. Precedence is flag, then environment, then default.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from onward.agent.settings import RunSettings, Streams
from onward.core.intake import FREQUENCY, read_frequency, read_silenced
from onward.core.policy import DEFAULT_POLICIES, Policy, closest, did_you_mean, parse_policies
from onward.core.published import Rules
from onward.devices import check_patterns, count_devices, cuda, npu
from onward.errors import UsageError
from onward.wire.token import LEAST_BYTES

UNLIMITED_RESTARTS = 32767  # what --max-restarts means when it is absent or 0
MAX_RANKS_PER_NODE = 4096  # beyond this a number is a slip, such as a port in the wrong place


_T = TypeVar("_T")


class HelpRequested(Exception):
    """`-h` or `--help` was given: print RUN_HELP and exit 0."""


@dataclass(frozen=True)
class _Flag:
    """One option: how it is spelt and what the help says. `name` is also its key in `_Line.given`."""

    name: str
    help: str
    value: str = ""  # what stands for the value in the help; empty: a switch
    short: str = ""
    alias: str = ""
    env: tuple[str, ...] = ()


# What an operator tells a pod about its place, under names of our own: torchrun in that pod must not take them.
_PLACE = ("nnodes", "nproc-per-node", "node-rank", "local-addr", "rdzv-endpoint", "standby")


def _torchrun(name: str, help: str, value: str = "", short: str = "") -> _Flag:
    upper = name.upper().replace("-", "_")
    return _Flag(name, help, value, short, env=(f"PET_{upper}", *([f"ONWARD_{upper}"] if name in _PLACE else [])))


_TORCHRUN = (
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
_IGNORED = (
    _torchrun("rdzv-backend", "onward brings its own rendezvous.", "NAME"),
    _torchrun("rdzv-conf", "onward brings its own rendezvous.", "K=V,..."),
    _torchrun("monitor-interval", "Nothing is polled.", "SECONDS"),
    _torchrun("start-method", "Ranks are forked from a warm parent (see --no-warm).", "NAME"),
    _torchrun("event-log-handler", "Incidents are recorded by onward.", "NAME"),
    _torchrun("duplicate-stdout-filters", "Look in the log files.", "TEXT,..."),
    _torchrun("duplicate-stderr-filters", "Look in the log files.", "TEXT,..."),
    _Flag("logs-specs", "Log files are onward's.", "NAME"),
    _Flag("numa-binding", "Bind ranks outside, for instance with numactl.", "MODE"),
)
_OWN = (
    _Flag(
        "recover-strategy",
        "Allowed policies: retry, recover-in-place, recover, elastic-training, dump, exit"
        f" (default {DEFAULT_POLICIES}). Their order is fixed.",
        "NAME,NAME,...",
        env=("ONWARD_RECOVER_STRATEGY",),
    ),
    _Flag("retry-on", "An error with this text is cured by a retry. Repeatable.", "REGEX"),
    _Flag("spares", "Parked replacements: none, one, or each (default each).", "WHICH", env=("ONWARD_SPARES",)),
    _Flag("preload", "Modules imported before ranks are forked. Repeatable.", "MODULE,..."),
    _Flag("no-warm", "Start each rank cold, as a new interpreter; implies --spares none."),
    _Flag("hang-floor", "No rank is called hung sooner (default 0.7).", "SECONDS", env=("ONWARD_HANG_FLOOR",)),
    _Flag(
        "grace",
        "Time between SIGTERM and SIGKILL (default 10).",
        "SECONDS",
        alias="shutdown-timeout",  # torchrun's name for it
        env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    ),
    _Flag(
        "silence-fault",
        "Published faults with these codes are shown only; with :SECONDS, for so long. Repeatable.",
        "CODE[:S],...",
        env=("ONWARD_SILENCE_FAULT",),
    ),
    _Flag(
        "fault-frequency",
        f"A code that is published so often for a node isolates it (default {FREQUENCY}); off for never.",
        "TIMES/WINDOW",
        env=("ONWARD_FAULT_FREQUENCY",),
    ),
    _Flag("dump-dir", "Checkpoints of a script that names no directory: dumps go there, and are loaded.", "DIR"),
    _Flag("chaos", "Inject a fault, such as rank=2,step=50,kind=kill, or a YAML file. Repeatable.", "SPEC"),
    _Flag(
        "job-name",
        "Name in messages and directories (default: the rdzv id).",
        "NAME",
        alias="job-id",
        env=("ONWARD_JOB_NAME",),
    ),
    _Flag("standby", "This node only takes the place of a lost one.", env=("ONWARD_STANDBY",)),
    _Flag(
        "manager-port",
        "Where this node would start a manager, were it the next to (default: any port).",
        "PORT",
        env=("ONWARD_MANAGER_PORT",),
    ),
    _Flag(
        "manager",
        "Where `onward manager` listens (default: node 0); each of a list is tried.",
        "HOST:PORT,...",
        env=("ONWARD_MANAGER",),
    ),
    _Flag(
        "token-file",
        "File with the shared secret of a job on several nodes.",
        "FILE",
        alias="join-token-file",
        env=("ONWARD_JOIN_TOKEN_FILE",),
    ),
    _Flag("join-token", "The shared secret itself; better in the environment.", "TEXT", env=("ONWARD_JOIN_TOKEN",)),
    _Flag("join-timeout", "How long to wait for the other nodes at the start (default 600).", "SECONDS"),
    _Flag(
        "sub-healthy-strategy",
        "What is done about a node that is worse than it should be: ignore, or hotSwitch (default ignore).",
        "NAME",
        env=("ONWARD_SUB_HEALTHY_STRATEGY",),
    ),
    _Flag("node-timeout", "No silent node is called lost sooner (default 5).", "SECONDS"),
    _Flag("fail-stop-after", "Silence of a node for so long is proof of its death (default: never).", "SECONDS"),
    _Flag(
        "wait-reschedule-timeout",
        "How long to wait for a node in the place of a lost one (default 270).",
        "SECONDS",
        env=("ONWARD_WAIT_RESCHEDULE_TIMEOUT",),
    ),
    _Flag("view", "live (redrawn), plain (lines) or auto (default auto).", "HOW"),
    _Flag("output", "Summary at the end: text or json (default text).", "HOW", short="-o"),
    _Flag("quiet", "Print nothing but the output of the ranks and errors."),
    _Flag("help", "Print this.", short="-h"),
)
_FLAGS = _TORCHRUN + _IGNORED + _OWN
_BY_SPELLING = {
    **{f"--{name}": flag for flag in _FLAGS for name in (flag.name, flag.alias) if name},
    **{flag.short: flag for flag in _FLAGS if flag.short},
}
_REPEATABLE = ("retry-on", "preload", "chaos", "silence-fault")


def parse_run(argv: Sequence[str], env: Mapping[str, str]) -> RunSettings:
    """What follows `onward run`, as settings. Raises UsageError with every problem found, or HelpRequested.

    The log directory is made here: finding out that it cannot be written is part of checking the line.
    """
    line = _Line(env)
    script, script_args = line.scan(argv)
    line.leave_pod(env)
    launch = _launch(line)
    standalone = line.switch("standalone")
    min_nodes, max_nodes = line.convert("nnodes", "1", _nodes, (0, 0))
    nproc = line.convert("nproc-per-node", "1", lambda text: _nproc(text, env), 0)
    warm = not line.switch("no-warm") and launch != "program"
    spares = line.choice("spares", "each", ("none", "one", "each"))
    if standalone and max_nodes > 1:
        line.problems.append(f"--standalone means one node, but --nnodes asks for {max_nodes}; drop one of the two")
    if line.switch("standby") and 0 < max_nodes < 2:
        line.problems.append(
            "--standby means to take the place of a lost node, but a job of one node has no other; "
            "give --nnodes as the other nodes of the job do, 2 or more"
        )
    if launch == "program" and "/" not in script and not _on_path(script, env) and os.path.isfile(script):
        script = f"./{script}"  # a file of this directory; without a slash it would be looked for on PATH only
    if script or not line.swallowed:
        line.problems += _script_problems(script, launch, env)
    node_rank = _node_rank(line, max_nodes)
    no_policies: tuple[Policy, ...] = ()
    policies = line.convert("recover-strategy", DEFAULT_POLICIES, parse_policies, no_policies)
    standby, manager = line.switch("standby"), line.text("manager", "")
    meets = bool(manager or standby or {"rdzv-endpoint", "master-addr"} & line.given.keys())
    several = not standalone and (min_nodes > 1 or standby or (max_nodes > 1 and meets))
    settings = RunSettings(
        script=script,
        script_args=script_args,
        launch=launch,
        nproc=nproc,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nodes=(max_nodes if Policy.ELASTIC in policies else min_nodes) if several else 1,
        several=several,
        node_rank=node_rank if several else 0,
        standby=standby,
        manager=manager,
        manager_port=line.whole("manager-port", 0, high=65535),
        master_addr=line.text("master-addr", "127.0.0.1"),
        master_port=_master_port(line, max_nodes),
        local_addr=line.text("local-addr", "") or None,
        standalone=standalone,
        rdzv_endpoint=line.text("rdzv-endpoint", ""),
        rdzv_id=line.text("rdzv-id", "none"),
        job_name=_job_name(line),
        role=line.text("role", "default"),
        max_restarts=line.whole("max-restarts", 0) or UNLIMITED_RESTARTS,
        policies=policies,
        retry_on=line.convert_each("retry-on", _regex),
        spares=spares if warm else "none",
        warm=warm,
        preload=tuple(name for names in line.convert_each("preload", _modules) for name in names),
        hang_floor_s=line.seconds("hang-floor", 0.7, zero_allowed=False),
        sub_healthy=line.choice("sub-healthy-strategy", "ignore", ("ignore", "hotSwitch")),
        node_timeout_s=line.seconds("node-timeout", 5.0, zero_allowed=False),
        fail_stop_s=line.seconds("fail-stop-after", 0.0),
        reschedule_s=line.seconds("wait-reschedule-timeout", 270.0),
        join_timeout_s=line.seconds("join-timeout", 600.0, zero_allowed=False),
        rules=_rules(line),
        grace_s=line.seconds("grace", 10.0),
        signals=line.convert("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", _signals, ()),
        dump_dir=line.convert("dump-dir", None, _writable_dir, None),
        log_dir=line.convert("log-dir", None, _writable_dir, None),
        redirects=line.convert("redirects", "0", lambda text: _streams(text, nproc), {}),
        tee=line.convert("tee", "0", lambda text: _streams(text, nproc), {}),
        shown_ranks=line.convert("local-ranks-filter", "", _ranks, None),
        virtual_local_rank=line.switch("virtual-local-rank"),
        chaos=line.convert_each("chaos", str),
        token_file=line.convert("token-file", None, _readable_file, None),
        join_token=_join_token(line),
        view=line.choice("view", "auto", ("auto", "live", "plain")),
        output=line.choice("output", "text", ("text", "json")),
        quiet=line.switch("quiet"),
        pod=env.get("ONWARD_POD_UID", ""),
        ignored=tuple(f"--{flag.name}" for flag in _IGNORED if flag.name in line.given),
    )
    if line.problems:
        raise UsageError(line.problems)
    return settings


class _Line:
    """The flags of one command line, each with where it came from, and the problems found so far."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.swallowed = False  # a word after an unknown flag was taken for its value; it may have been the script
        self.given: dict[str, list[tuple[str, str]]] = {}  # name -> ("--flag " or "VARIABLE=", value)
        for flag in _FLAGS:
            for variable in flag.env:
                if flag.name not in self.given and env.get(variable, "").strip():
                    self.given[flag.name] = [(f"{variable}=", env[variable])]

    def scan(self, argv: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Take the flags up to the script; return the script and its arguments."""
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            if word == "--":
                break
            if not _is_flag(word):
                return word, tuple(rest)
            self._take(word, rest)
        return (rest[0], tuple(rest[1:])) if rest else ("", ())

    def _take(self, word: str, rest: list[str]) -> None:
        spelt, value = _split(word)
        flag = _find(spelt)
        if flag is None:
            self._refuse(spelt, value, rest)
        elif flag.name == "help":
            raise HelpRequested
        elif not flag.value and value is not None:
            self.problems.append(f"{word}: this is a switch and takes no value; write {spelt} alone, or leave it out")
        elif flag.value and value is None and not (rest and _can_be_value(rest[0])):
            self.problems.append(f"{spelt} needs a value; write {spelt} {flag.value}")
        else:
            if flag.value and value is None:
                value = rest.pop(0)
            earlier = self.given.get(flag.name, []) if flag.name in _REPEATABLE else []
            self.given[flag.name] = [*earlier, (f"{spelt} ", "1" if value is None else value)]

    def _refuse(self, spelt: str, value: str | None, rest: list[str]) -> None:
        dashed = [name[2:] for name in _BY_SPELLING if name.startswith("--")]
        name = closest(spelt.lstrip("-"), dashed + [name.replace("-", "_") for name in dashed])
        meant = _find(f"--{name}") if name else None
        hint = f"; did you mean --{name}?" if name else ""
        self.problems.append(f"unknown flag {spelt}{hint} (onward run --help lists all flags)")
        # Its value, if it has one, must not be taken for the script and be reported as a missing file.
        takes_value = value is None and (meant is None or bool(meant.value))
        if takes_value and rest and not _is_flag(rest[0]) and not os.path.isfile(rest[0]):
            rest.pop(0)
            self.swallowed = True

    def leave_pod(self, env: Mapping[str, str]) -> None:
        """A line that is not about the pod's job, but about one of its own, does not take the pod's place in it."""
        nodes = self.text("nnodes", "")
        most, of_pod = (text.rpartition(":")[2].strip() for text in (nodes, env.get("ONWARD_NNODES", nodes)))
        if "standalone" in self.given or most != of_pod:
            for name in _PLACE:
                if name in self.given and self.given[name][-1][0].startswith("ONWARD_"):
                    del self.given[name]

    def text(self, name: str, default: str) -> str:
        return self.given[name][-1][1].strip() if name in self.given else default

    def problem(self, name: str, what: str) -> None:
        where, value = self.given[name][-1]
        self.problems.append(f"{where}{value}: {what}")

    def switch(self, name: str) -> bool:
        def read(text: str) -> bool:
            if not re.fullmatch(r"[0-9]{1,10}", text):
                raise UsageError("not 0 or 1; set it to 1 for on, 0 for off")
            return int(text) != 0  # as torchrun reads the variables of its switches

        return self.convert(name, "0", read, False)

    def whole(self, name: str, default: int, high: int = 2**31 - 1) -> int:
        def read(text: str) -> int:
            if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > high:
                raise UsageError(f"not a whole number from 0 to {high}; give one")
            return int(text)

        return self.convert(name, str(default), read, default)

    def seconds(self, name: str, default: float, zero_allowed: bool = True) -> float:
        def read(text: str) -> float:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
                least = "0 or more" if zero_allowed else "more than 0"
                raise UsageError(f"not a number of seconds; give {least}, or leave it out for {default:g}")
            return value

        return self.convert(name, str(default), read, default)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        def read(text: str) -> str:
            if text not in choices:
                raise UsageError(f"not one of {', '.join(choices)}{did_you_mean(text, choices)}")
            return text

        return self.convert(name, default, read, default)

    def convert(self, name: str, default: str | None, read: Callable[[str], _T], otherwise: _T) -> _T:
        """The value as `read` understands it; a UsageError of `read` becomes a problem of this flag.

        `otherwise` stands for a value that is wrong, and for one that was not given where there is no default.
        """
        if default is None and name not in self.given:
            return otherwise
        try:
            return read(self.text(name, default or ""))
        except UsageError as error:
            for what in error.problems:
                self.problem(name, what)
            return otherwise

    def convert_each(self, name: str, read: Callable[[str], _T]) -> tuple[_T, ...]:
        """The same for a flag that may be repeated."""
        values = []
        for where, text in self.given.get(name, ()):
            try:
                values.append(read(text))
            except UsageError as error:
                self.problems += [f"{where}{text}: {what}" for what in error.problems]
        return tuple(values)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _can_be_value(word: str) -> bool:
    """As argparse judges: not a flag, but a negative number is better reported as a wrong value."""
    return not _is_flag(word) or re.fullmatch(r"-[0-9.]+", word) is not None


def _split(word: str) -> tuple[str, str | None]:
    """`--flag=value`, `-r3` and `-r=3` into flag and value; the value is None where there is none."""
    short = word[:2]
    if short in _BY_SPELLING and _BY_SPELLING[short].value and len(word) > 2:
        return short, word[2:].removeprefix("=")
    spelt, equals, value = word.partition("=")
    return spelt, value if equals else None


def _find(spelt: str) -> _Flag | None:
    """The flag that is spelt like this. Like torchrun, take an abbreviation of its flags that means only one."""
    name = spelt.replace("_", "-")
    if name in _BY_SPELLING or not name.startswith("--"):
        return _BY_SPELLING.get(name)
    begins = [flag for flag in _TORCHRUN + _IGNORED if f"--{flag.name}".startswith(name)]
    return begins[0] if len(begins) == 1 else None


def _launch(line: _Line) -> str:
    module, program = line.switch("module"), line.switch("no-python")
    if line.switch("run-path"):
        return "script"
    if module and program:
        line.problems.append("--module and --no-python exclude each other: python runs modules; drop one of the two")
    return "module" if module else "program" if program else "script"


def _script_problems(script: str, launch: str, env: Mapping[str, str]) -> list[str]:
    if not script:
        return ["no training script given; write: onward run [flags] script.py [arguments of the script]"]
    if launch == "module":
        if script.endswith(".py") or "/" in script:
            name = script.removesuffix(".py").strip("./").replace("/", ".")
            return [f"--module takes the name of a module, but {script} is a path; write -m {name}, or drop -m"]
        return []
    if launch == "program":
        if _on_path(script, env):
            return []
        if os.path.isfile(script):
            return [
                f"program {script} is not executable; run chmod +x {script}, or drop --no-python for a Python script"
            ]
        return [f"program {script} was found neither on PATH nor as a file; give its path"]
    if os.path.isfile(script) or os.path.isfile(os.path.join(script, "__main__.py")):
        return [] if os.access(script, os.R_OK) else [f"script {script} cannot be read; check its permissions"]
    return [f"script {script} is not a file{_file_meant(script) or '; give the path of the training script'}"]


def _on_path(program: str, env: Mapping[str, str]) -> bool:
    return shutil.which(program, path=env.get("PATH", os.defpath)) is not None


def _file_meant(path: str) -> str:
    directory, name = os.path.split(path)
    try:
        meant = closest(name, os.listdir(directory or "."))
    except (OSError, ValueError):
        return f"; there is no directory {directory or '.'}"
    return f"; did you mean {os.path.join(directory, meant)}?" if meant else ""


def _nodes(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if not match:
        raise UsageError("not a number of nodes; give N or MIN:MAX, such as 2 or 2:4")
    least, most = int(match[1]), int(match[2] or match[1])
    if least < 1:
        raise UsageError("a job needs at least one node; give 1 or more")
    if least > most:
        raise UsageError(f"the minimum {least} is more than the maximum {most}; did you mean {most}:{least}?")
    return least, most


def _nproc(text: str, env: Mapping[str, str]) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text):
        count = int(text)
        if not 1 <= count <= MAX_RANKS_PER_NODE:
            raise UsageError(f"a node runs 1 to {MAX_RANKS_PER_NODE} ranks; give such a number, auto, gpu, npu or cpu")
        return count
    # As torchrun counts: the processors this process may use, which a container can limit.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus, npus = count_devices(cuda.VENDOR, env), count_devices(npu.VENDOR, env)
    counts = {"auto": gpus or npus or cpus, "gpu": gpus, "npu": npus, "cpu": cpus}
    if text not in counts:
        raise UsageError(f"not a number of ranks; give 1 or more, auto, gpu, npu or cpu{did_you_mean(text, counts)}")
    if counts[text] == 0:
        vendor = cuda.VENDOR if text == "gpu" else npu.VENDOR
        where = f"{vendor.visible_devices_env} or /dev/{vendor.device_files}"
        raise UsageError(f"no {text} found by {where}; give a number, or cpu")
    return counts[text]


def _node_rank(line: _Line, max_nodes: int) -> int:
    if "node-rank" not in line.given:
        return -1 if max_nodes > 1 else 0
    rank = line.whole("node-rank", 0)
    if max_nodes > 1 and line.text("rdzv-backend", "static") != "static":
        return -1  # torchrun's other backends number the nodes themselves, so there the flag may say anything
    if 0 < max_nodes <= rank:
        line.problem(
            "node-rank", f"--nnodes says {max_nodes}, numbered from 0; give 0 to {max_nodes - 1}, or raise --nnodes"
        )
    return rank


def _master_port(line: _Line, max_nodes: int) -> int | None:
    several_nodes = max_nodes > 1
    port = line.whole("master-port", 29500 if several_nodes else 0, high=65535)
    if port == 0 and several_nodes:
        line.problem("master-port", "several nodes must agree on one port; give 1 to 65535")
    return port or None


def _join_token(line: _Line) -> str:
    token = line.text("join-token", "").strip()
    if token and len(token) < LEAST_BYTES:
        line.problem("join-token", "too short for a secret; make one with: openssl rand -hex 32")
    return token


def _rules(line: _Line) -> Rules:
    silenced = [pair for pairs in line.convert_each("silence-fault", read_silenced) for pair in pairs]
    times, window_s = line.convert("fault-frequency", FREQUENCY, read_frequency, (0, 1.0))
    return Rules(tuple(silenced), times, window_s)


def _job_name(line: _Line) -> str:
    def read(text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", text):
            raise UsageError("not a name for a directory; use up to 128 letters, digits, dots, dashes and underscores")
        return text

    # torchrun puts no limits on its id, so what does not fit into the name of a directory is replaced.
    rdzv_id = line.text("rdzv-id", "none")
    default = "" if rdzv_id == "none" else re.sub(r"[^A-Za-z0-9._-]", "-", rdzv_id).lstrip(".-_")[:128]
    return line.convert("job-name", None, read, default)


def _regex(text: str) -> str:
    check_patterns((text,))
    return text


def _modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in names if not all(part.isidentifier() for part in name.split("."))]
    if wrong or not names:
        raise UsageError("not names of modules; give them as in an import statement, such as numpy,torchvision.models")
    return names


def _signals(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().upper() for name in text.split(",") if name.strip()))
    known = [name for name in signal.Signals.__members__ if name not in ("SIGKILL", "SIGSTOP")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError([f"{name} is not a signal that can be handled{did_you_mean(name, known)}" for name in unknown])
    return names


def _streams(text: str, nproc: int) -> dict[int, Streams]:
    if re.fullmatch(r"[0-3]", text):
        return dict.fromkeys(range(nproc), Streams(int(text)))
    if not re.fullmatch(r"[0-9]{1,6}:[0-3](?:,[0-9]{1,6}:[0-3])*", text):
        raise UsageError(
            "not a choice of streams; give 0 (none), 1 (out), 2 (err) or 3 (both), or by local rank 0:1,1:3"
        )
    chosen = dict(pair.split(":") for pair in text.split(","))
    by_rank = {int(rank): Streams(int(streams)) for rank, streams in chosen.items()}
    return {rank: by_rank.get(rank, Streams.NONE) for rank in range(nproc)}


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(?:, *[0-9]{1,6})*", text):
        raise UsageError("not a list of local ranks; give numbers such as 0,1,2")
    return frozenset(int(rank) for rank in text.split(","))


def _writable_dir(text: str) -> Path:
    try:
        os.makedirs(text, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            return Path(text)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"cannot write there ({reason}); give a directory that can be made and written")


def _readable_file(text: str) -> Path:
    if not os.path.isfile(text) or not os.access(text, os.R_OK):
        raise UsageError("not a file that can be read; give the path of one")
    return Path(text)


def _help() -> str:
    sections = [
        ("Flags of torchrun (also spelt with _; defaults also from PET_... as with torchrun):", _TORCHRUN),
        ("Flags of onward:", _OWN),
        ("Flags of torchrun that are accepted and have no effect here:", _IGNORED),
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
