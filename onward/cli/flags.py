"""The command line of `onward run`: torchrun's flags, in both spellings, and onward's own.

The parser is written by hand because three things matter that argparse does not give: a line written for torchrun works
unchanged (also its PET_* environment), all problems of a line are reported at once with a did-you-mean, and the help is
printed from the same table that is parsed. Precedence is flag, then environment, then default.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from onward.agent.settings import RunSettings
from onward.cli import values
from onward.cli.flag_table import IGNORED, UNLIMITED_RESTARTS
from onward.cli.line import Line
from onward.cli.modules import first_missing, needs_main
from onward.cli.paths import meant
from onward.core.intake import FREQUENCY, read_frequency, read_silenced
from onward.core.policy import DEFAULT_POLICIES, Policy, parse_policies
from onward.core.published import Rules
from onward.errors import UsageError
from onward.wire.token import LEAST_BYTES


def parse_run(argv: Sequence[str], env: Mapping[str, str]) -> RunSettings:
    """What follows `onward run`, as settings. Raises UsageError with every problem found, or HelpRequested.

    The log directory is made here: finding out that it cannot be written is part of checking the line.
    """
    line = Line(env)
    script, script_args = line.scan(argv)
    line.leave_pod(env)
    launch = _launch(line)
    standalone = line.switch("standalone")
    min_nodes, max_nodes = line.convert("nnodes", "1", values.nodes, (0, 0))
    nproc = line.convert("nproc-per-node", "1", lambda text: values.nproc(text, env), 0)
    warm = not line.switch("no-warm") and launch != "program"
    spares = line.choice("spares", "each", ("none", "one", "each"))
    standby, manager = line.switch("standby"), line.text("manager", "")
    line.problems += _nodes_problems(standalone, standby and not line.of_pod("standby"), max_nodes)
    if launch == "program" and "/" not in script and not _on_path(script, env) and os.path.isfile(script):
        script = f"./{script}"  # a file of this directory; without a slash it would be looked for on PATH only
    if script or not line.swallowed:
        line.problems += _script_problems(script, launch, env)
    node_rank = _node_rank(line, max_nodes)
    policies: tuple[Policy, ...] = line.convert("recover-strategy", DEFAULT_POLICIES, parse_policies, ())
    meets = bool(manager or standby or {"rdzv-endpoint", "master-addr"} & line.given.keys())
    placed = line.of_pod("rdzv-endpoint") or line.of_pod("manager")  # the operator asks the manager how it goes
    several = not standalone and (min_nodes > 1 or standby or (max_nodes > 1 and meets) or placed)
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
        retry_on=line.convert_each("retry-on", values.regex),
        spares=spares if warm else "none",
        warm=warm,
        preload=tuple(name for names in line.convert_each("preload", values.modules) for name in names),
        hang_floor_s=line.seconds("hang-floor", 0.7, zero_allowed=False),
        sub_healthy=line.choice("sub-healthy-strategy", "ignore", ("ignore", "hotSwitch")),
        node_timeout_s=line.seconds("node-timeout", 5.0, zero_allowed=False),
        fail_stop_s=line.seconds("fail-stop-after", 0.0),
        reschedule_s=line.seconds("wait-reschedule-timeout", 270.0),
        join_timeout_s=line.seconds("join-timeout", 600.0, zero_allowed=False),
        rules=_rules(line),
        grace_s=line.seconds("grace", 10.0),
        signals=line.convert("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", values.signals, ()),
        dump_dir=line.convert("dump-dir", None, values.writable_dir, None),
        log_dir=line.convert("log-dir", None, values.writable_dir, None),
        redirects=line.convert("redirects", "0", lambda text: values.streams(text, nproc), {}),
        tee=line.convert("tee", "0", lambda text: values.streams(text, nproc), {}),
        shown_ranks=line.convert("local-ranks-filter", "", values.ranks, None),
        virtual_local_rank=line.switch("virtual-local-rank"),
        chaos=line.convert_each("chaos", str),
        token_file=line.convert("token-file", None, values.readable_file, None),
        join_token=_join_token(line),
        view=line.choice("view", "auto", ("auto", "live", "plain")),
        output=line.choice("output", "text", ("text", "json")),
        quiet=line.switch("quiet"),
        pod=env.get("ONWARD_POD_UID", ""),
        ignored=tuple(f"--{flag.name}" for flag in IGNORED if flag.name in line.given),
    )
    if line.problems:
        raise UsageError(line.problems)
    return settings


def _nodes_problems(standalone: bool, standby: bool, max_nodes: int) -> list[str]:
    problems = []
    if standalone and max_nodes > 1:
        problems.append(f"--standalone means one node, but --nnodes asks for {max_nodes}; drop one of the two")
    if standby and 0 < max_nodes < 2:
        problems.append(
            "--standby means to take the place of a lost node, but a job of one node has no other; "
            "give --nnodes as the other nodes of the job do, 2 or more"
        )
    return problems


def _launch(line: Line) -> str:
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
        return [] if env.get("PYTHON_EXEC") else _module_problems(script)
    if launch == "program":
        if _on_path(script, env):
            return []
        if os.path.isfile(script):
            return [
                f"program {script} is not executable; run chmod +x {script}, or drop --no-python for a Python script"
            ]
        return [f"program {script} was found neither on PATH nor as a file; give its path"]
    if os.path.isfile(script) or os.path.isfile(os.path.join(script, "__main__.py")):
        if not os.access(script, os.R_OK):
            return [f"script {script} cannot be read; check its permissions"]
        return _syntax_problems(script) if script.endswith(".py") and not env.get("PYTHON_EXEC") else []
    if os.path.isdir(script):
        return [f"script {script} is a directory without a __main__.py; give the path of the training script"]
    return [f"script {script} is not a file{meant(script) or '; give the path of the training script'}"]


def _module_problems(name: str) -> list[str]:
    path = ["", *sys.path]  # as `python -m` looks for it
    missing = first_missing(name, path)
    if missing:
        return [f"there is no module {missing}, neither here nor on PYTHONPATH; -m takes a name as in an import"]
    if needs_main(name, path):
        return [f"module {name} is a package without a __main__.py; name the module in it that is the training script"]
    return []


def _syntax_problems(script: str) -> list[str]:
    """What Python itself would say, said before any process is started."""
    try:
        with open(script, "rb") as f:
            compile(f.read(), script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        where = f" in line {e.lineno}: {e.text.strip()}" if isinstance(e, SyntaxError) and e.text else ""
        return [f"script {script} is not valid Python: {getattr(e, 'msg', e)}{where}"]
    except OSError as e:
        return [f"script {script} cannot be read: {e.strerror}"]
    return []


def _on_path(program: str, env: Mapping[str, str]) -> bool:
    return shutil.which(program, path=env.get("PATH", os.defpath)) is not None


def _node_rank(line: Line, max_nodes: int) -> int:
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


def _master_port(line: Line, max_nodes: int) -> int | None:
    several_nodes = max_nodes > 1
    port = line.whole("master-port", 29500 if several_nodes else 0, high=65535)
    if port == 0 and several_nodes:
        line.problem("master-port", "several nodes must agree on one port; give 1 to 65535")
    return port or None


def _join_token(line: Line) -> str:
    token = line.text("join-token", "").strip()
    if token and len(token) < LEAST_BYTES:
        line.problem("join-token", "too short for a secret; make one with: openssl rand -hex 32")
    return token


def _rules(line: Line) -> Rules:
    silenced = [pair for pairs in line.convert_each("silence-fault", read_silenced) for pair in pairs]
    times, window_s = line.convert("fault-frequency", FREQUENCY, read_frequency, (0, 1.0))
    return Rules(tuple(silenced), times, window_s)


def _job_name(line: Line) -> str:
    def read(text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", text):
            raise UsageError("not a name for a directory; use up to 128 letters, digits, dots, dashes and underscores")
        return text

    # torchrun puts no limits on its id, so what does not fit into the name of a directory is replaced.
    rdzv_id = line.text("rdzv-id", "none")
    default = "" if rdzv_id == "none" else re.sub(r"[^A-Za-z0-9._-]", "-", rdzv_id).lstrip(".-_")[:128]
    return line.convert("job-name", None, read, default)
