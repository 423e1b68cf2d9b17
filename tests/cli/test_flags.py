"""The command line of `onward run`: torchrun's parser is the judge of what must be accepted, and how it is read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.api import Std, to_map
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from onward.agent.meeting import endpoints
from onward.agent.settings import RunSettings, Streams
from onward.api.env import door_of
from onward.cli.flag_table import RUN_HELP
from onward.cli.flags import parse_run
from onward.cli.line import HelpRequested
from onward.core.policy import Policy
from onward.errors import UsageError

TORCH_ACTIONS = [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]

# A value that torchrun accepts, where the plain word would not do.
VALUES = {
    "nnodes": "2:3",
    "nproc_per_node": "2",
    "max_restarts": "5",
    "monitor_interval": "0.5",
    "start_method": "fork",
    "redirects": "3",
    "tee": "0:1,1:3",
    "local_ranks_filter": "0,1",
    "node_rank": "1",
    "master_port": "29400",
    "numa_binding": "node",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "shutdown_timeout": "4",
    "rdzv_conf": "timeout=9",
    "log_dir": "logs",
}


@pytest.fixture(autouse=True)
def _in_a_directory_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("print('hello')\n")


def run(line: str, env: dict[str, str] | None = None) -> RunSettings:
    return parse_run(line.split(), {"PATH": os.environ["PATH"]} | (env or {}))


def problems(line: str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(UsageError) as caught:
        run(line, env)
    return caught.value.problems


# What torchrun takes


def _spellings(action: argparse.Action) -> list[str]:
    """As torch lists them, and every long one with dashes and with underscores."""
    ways = set(action.option_strings)
    for option in action.option_strings:
        if option.startswith("--"):
            ways |= {"--" + option[2:].replace("-", "_"), "--" + option[2:].replace("_", "-")}
    return sorted(ways)


ALL_SPELLINGS = [(action, way) for action in TORCH_ACTIONS for way in _spellings(action)]


@pytest.mark.parametrize(("action", "way"), ALL_SPELLINGS, ids=[way for _, way in ALL_SPELLINGS])
def test_every_flag_of_torchrun_is_accepted_in_both_spellings(action: argparse.Action, way: str) -> None:
    nodes = ["--nnodes=2"] if action.dest == "node_rank" else []
    name = "train" if action.dest == "module" else "ls" if action.dest == "no_python" else "train.py"
    value = VALUES.get(action.dest, "word")
    lines = [[way]] if action.nargs == 0 else [[way, value], [f"{way}={value}"]]
    parsed = [parse_run([*nodes, *flag, name, "--x", way], {"PATH": os.environ["PATH"]}) for flag in lines]
    assert all(p == parsed[0] for p in parsed)
    assert parsed[0].script_args == ("--x", way)
    # It was understood: what the line says has changed, or it is listed as having no effect.
    plain = parse_run([*nodes, "train.py", "--x", way], {})
    assert parsed[0].ignored or parsed[0] != plain or action.dest == "run_path"


def test_torchs_parser_was_really_walked() -> None:
    assert {"nnodes", "nproc_per_node", "virtual_local_rank", "duplicate_stderr_filters"} <= {
        a.dest for a in TORCH_ACTIONS
    }
    assert len(TORCH_ACTIONS) >= 28


PET = [a for a in TORCH_ACTIONS if a.dest not in ("logs_specs", "numa_binding", "module", "no_python", "run_path")]


@pytest.mark.parametrize("action", PET, ids=[action.dest for action in PET])
def test_every_pet_variable_means_its_flag(action: argparse.Action) -> None:
    nodes = "" if action.dest in ("nnodes", "standalone") else "--nnodes 2 "
    value = "1" if action.nargs == 0 else VALUES.get(action.dest, "word")
    flag = f"--{action.dest}" if action.nargs == 0 else f"--{action.dest} {value}"
    assert run(f"{nodes}train.py", {f"PET_{action.dest.upper()}": value}) == run(f"{nodes}{flag} train.py")


@pytest.mark.parametrize(
    ("line", "env", "launch"),
    [
        ("-m pkg.train", {}, "module"),
        ("pkg.train", {"PET_MODULE": "1"}, "module"),
        ("train.py", {"PET_MODULE": "0"}, "script"),
        ("--no-python ls -l", {}, "program"),
        ("--no_python --run-path train.py", {}, "script"),
    ],
)
def test_how_the_script_is_launched(line: str, env: dict[str, str], launch: str) -> None:
    assert run(line, env).launch == launch


words = st.text(alphabet="abc019.", min_size=1, max_size=5)
torch_flags = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["--nnodes"]), st.sampled_from(["1", "1:4", "3:3"])),
        st.tuples(st.sampled_from(["--nproc_per_node", "--nproc-per-node"]), st.sampled_from(["1", "4", "cpu"])),
        st.tuples(st.sampled_from(["--master-addr", "--rdzv_id", "--role", "--rdzv-endpoint", "--local_addr"]), words),
        st.tuples(st.sampled_from(["-r", "--redirects", "-t", "--tee"]), st.sampled_from(["0", "3", "0:1", "1:2,0:3"])),
        st.tuples(st.sampled_from(["--master-port"]), st.sampled_from(["1", "29500", "65535"])),
        st.tuples(st.sampled_from(["--max-restarts"]), st.sampled_from(["0", "3"])),
    ),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(torch_flags, st.booleans(), st.lists(st.sampled_from(["--nnodes", "-m", "--help", "-x", "--lr=1", "7", ""])))
def test_a_line_means_what_it_means_to_torchrun(flags: list[tuple[str, str]], glued: bool, tail: list[str]) -> None:
    argv = [word for flag, value in flags for word in ([f"{flag}={value}"] if glued else [flag, value])]
    argv += ["train.py", *tail]
    theirs, ours = get_args_parser().parse_args(argv), parse_run(argv, {})
    assert (ours.script, list(ours.script_args)) == (theirs.training_script, theirs.training_script_args)
    assert (ours.min_nodes, ours.max_nodes) == parse_min_max_nnodes(theirs.nnodes)
    assert str(ours.nproc) == str(
        len(os.sched_getaffinity(0)) if theirs.nproc_per_node == "cpu" else theirs.nproc_per_node
    )
    assert (ours.master_addr, ours.rdzv_id, ours.role) == (theirs.master_addr, theirs.rdzv_id, theirs.role)
    assert (ours.rdzv_endpoint, ours.local_addr) == (theirs.rdzv_endpoint, theirs.local_addr)
    assert dict(ours.redirects) == to_map(Std.from_str(theirs.redirects), ours.nproc)
    assert dict(ours.tee) == to_map(Std.from_str(theirs.tee), ours.nproc)
    assert ours.max_restarts == (theirs.max_restarts or 32767)
    if theirs.master_port is not None:
        assert ours.master_port == theirs.master_port


@pytest.mark.parametrize(
    "line", ["--stand train.py", "--nproc-per 3 train.py", "--max_r=3 train.py", "--tee=3 train.py"]
)
def test_abbreviations_work_as_with_torchrun(line: str) -> None:
    theirs = get_args_parser().parse_args(line.split())
    ours = run(line)
    assert (ours.standalone, str(ours.nproc)) == (theirs.standalone, theirs.nproc_per_node)
    assert ours.max_restarts == (theirs.max_restarts or 32767)


# What the values mean


def test_defaults() -> None:
    plain = run("train.py")
    assert (plain.nproc, plain.min_nodes, plain.max_nodes, plain.node_rank) == (1, 1, 1, 0)
    assert (plain.master_addr, plain.master_port, plain.job_name, plain.rdzv_id) == ("127.0.0.1", None, "", "none")
    assert plain.max_restarts == 32767
    assert plain.policies == (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.DUMP, Policy.EXIT)
    assert (plain.spares, plain.warm, plain.hang_floor_s, plain.grace_s) == ("each", True, 0.7, 10.0)
    assert (plain.view, plain.output, plain.quiet, plain.ignored) == ("auto", "text", False, ())
    assert (plain.log_dir, plain.token_file, plain.shown_ranks) == (None, None, None)
    assert plain.redirects == {0: Streams.NONE}
    assert plain.signals == ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("train.py", "train"),
        ("-m pkg.train", "pkg.train"),
        ("-m pkg.train --job-name no", "pkg.train"),
        ("--job-name mine -m pkg.train", "mine"),
        ("--rdzv-id 7 train.py", "7"),
        ("app", "app"),
        ("app/__main__.py", "app"),
        ("app/.", "app"),
    ],
)
def test_a_job_is_called_by_what_it_runs(line: str, name: str) -> None:
    Path("app").mkdir()
    Path("app/__main__.py").touch()
    assert run(line).name == name


def test_own_flags() -> None:
    Path("token").write_text("secret")
    told = run(
        "--recover-strategy=exit,retry --spares one --preload numpy,xml.dom --preload json --chaos rank=1,kind=kill"
        " --chaos f.yaml --hang-floor 2.5 --grace 0 --job-id j.1 --quiet --view plain -o json"
        " --retry-on E\\d+ --retry_on x --token-file token --log-dir a/b train.py --spares none"
    )
    assert told.policies == (Policy.RETRY, Policy.EXIT)
    assert (told.spares, told.preload) == ("one", ("numpy", "xml.dom", "json"))
    assert (told.chaos, told.retry_on) == (("rank=1,kind=kill", "f.yaml"), ("E\\d+", "x"))
    assert (told.hang_floor_s, told.grace_s, told.job_name) == (2.5, 0.0, "j.1")
    assert (told.quiet, told.view, told.output) == (True, "plain", "json")
    assert (told.token_file, told.log_dir) == (Path("token"), Path("a/b"))
    assert Path("a/b").is_dir()
    assert list(Path("a/b").iterdir()) == []
    assert told.script_args == ("--spares", "none")


@pytest.mark.parametrize(
    ("line", "env", "field", "value"),
    [
        ("train.py", {"ONWARD_SPARES": "none"}, "spares", "none"),
        ("--spares one train.py", {"ONWARD_SPARES": "none"}, "spares", "one"),
        ("--spares one train.py", {"ONWARD_SPARES": "bad"}, "spares", "one"),
        ("train.py", {"ONWARD_SPARES": " "}, "spares", "each"),
        ("train.py", {"ONWARD_HANG_FLOOR": "3"}, "hang_floor_s", 3.0),
        ("--hang-floor 4 train.py", {"ONWARD_HANG_FLOOR": "3"}, "hang_floor_s", 4.0),
        ("train.py", {"ONWARD_RECOVER_STRATEGY": " dump "}, "policies", (Policy.DUMP, Policy.EXIT)),
        (
            "--recover-strategy recover train.py",
            {"ONWARD_RECOVER_STRATEGY": "x"},
            "policies",
            (Policy.RECOVER, Policy.EXIT),
        ),
        ("train.py", {"PET_NPROC_PER_NODE": "3"}, "nproc", 3),
        ("--nproc_per_node=2 train.py", {"PET_NPROC_PER_NODE": "3"}, "nproc", 2),
        ("--nproc_per_node=2 --nproc-per-node 5 train.py", {}, "nproc", 5),
        ("train.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, "grace_s", 7.0),
        ("--shutdown-timeout 8 train.py", {"PET_SHUTDOWN_TIMEOUT": "7"}, "grace_s", 8.0),
        ("--nproc-per-node gpu train.py", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "nproc", 3),
        ("--nproc-per-node auto train.py", {"CUDA_VISIBLE_DEVICES": "4,5"}, "nproc", 2),
        ("--nproc-per-node npu train.py", {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "nproc", 2),
        ("--max-restarts 0 train.py", {}, "max_restarts", 32767),
        ("--max_restarts 32767 train.py", {}, "max_restarts", 32767),
        ("--max_restarts=3 train.py", {}, "max_restarts", 3),
        ("--master-port 0 train.py", {}, "master_port", None),
        ("--nnodes 2 train.py", {}, "master_port", 29500),
        ("--nnodes 2 --node-rank 7 --rdzv-backend c10d train.py", {}, "node_rank", -1),
        ("--rdzv-id a/b:c train.py", {}, "job_name", "a-b-c"),
        ("--rdzv-id a/b:c --job-name n train.py", {}, "job_name", "n"),
        ("--no-warm train.py", {}, "spares", "none"),
        ("--no-python ls", {}, "warm", False),
        ("-r3 --nproc-per-node 2 train.py", {}, "redirects", {0: Streams.ALL, 1: Streams.ALL}),
        ("-t=1:2 --nproc-per-node 2 train.py", {}, "tee", {0: Streams.NONE, 1: Streams.ERR}),
        ("--local_ranks_filter=0,2 train.py", {}, "shown_ranks", frozenset({0, 2})),
        ("--signals-to-handle sigterm,SIGUSR1 train.py", {}, "signals", ("SIGTERM", "SIGUSR1")),
        ("--rdzv-conf a=b --start_method spawn train.py", {}, "ignored", ("--rdzv-conf", "--start-method")),
        ("-- train.py -- x", {}, "script_args", ("--", "x")),
        ("-m pkg.train --help", {}, "script_args", ("--help",)),
    ],
)
def test_flag_before_environment_before_default(line: str, env: dict[str, str], field: str, value: object) -> None:
    assert getattr(run(line, env), field) == value


def test_auto_falls_back_to_the_processors() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}
    assert run("--nproc-per-node auto train.py", hidden).nproc == len(os.sched_getaffinity(0))


def test_the_seeds_launch_line() -> None:
    line = "--nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr 10.0.0.1 --master_port 6000 --max_restarts 32767"
    seed = run(line + " train.py --epochs=90 -j=128")
    assert (seed.nproc, seed.max_nodes, seed.node_rank, seed.master_addr, seed.master_port) == (
        8,
        2,
        1,
        "10.0.0.1",
        6000,
    )
    assert (seed.max_restarts, seed.script_args) == (32767, ("--epochs=90", "-j=128"))


def test_a_program_of_this_directory_is_found_without_a_slash(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("#!/bin/sh\n")
    (tmp_path / "start.sh").chmod(0o755)
    assert run("--no-python start.sh").script == "./start.sh"
    assert run("--no-python ./start.sh").script == "./start.sh"
    assert run(f"--no-python {tmp_path}/start.sh").script == f"{tmp_path}/start.sh"


def test_a_directory_with_a_main_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    assert "app is a directory without a __main__.py" in problems("app")[0]
    (tmp_path / "app" / "__main__.py").touch()
    assert run("app").script == "app"


def test_what_python_could_not_read_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n    pass\n")
    assert "broken.py is not valid Python: invalid syntax in line 2: def f(:" in problems("broken.py")[0]
    (tmp_path / "nulls.py").write_bytes(b"x = '\0'\n")
    assert "nulls.py is not valid Python" in problems("nulls.py")[0]


# What is refused

BAD = [
    ("", {}, ["no training script given"]),
    ("--nproc-per-node 2", {}, ["no training script given"]),
    ("trian.py", {}, ["trian.py is not a file", "did you mean train.py?"]),
    ("nowhere/train.py", {}, ["there is no directory nowhere"]),
    ("--nproc_per_nodes 4 train.py", {}, ["unknown flag --nproc_per_nodes", "did you mean --nproc_per_node?"]),
    ("--nprc-per-node=4 train.py", {}, ["unknown flag --nprc-per-node", "did you mean --nproc-per-node?"]),
    ("-nproc-per-node 4 train.py", {}, ["unknown flag -nproc-per-node", "did you mean --nproc-per-node?"]),
    ("--quite train.py", {}, ["unknown flag --quite", "did you mean --quiet?"]),
    ("-np 4 train.py", {}, ["unknown flag -np ", "--help"]),
    ("--zzzzzz 4 train.py", {}, ["unknown flag --zzzzzz "]),
    ("--zzzzzz train.py", {}, ["unknown flag --zzzzzz "]),
    ("-m --zzzzzz pkg.train", {}, ["unknown flag --zzzzzz "]),
    ("--no train.py", {}, ["unknown flag --no"]),  # torchrun has several that begin so
    ("--nproc-per-node 0 train.py", {}, ["--nproc-per-node 0:", "1 to 4096"]),
    ("--nproc-per-node -1 train.py", {}, ["--nproc-per-node -1:", "give 1 or more"]),
    ("--nproc-per-node 29500 train.py", {}, ["1 to 4096"]),
    ("--nproc_per_node=gpus train.py", {}, ["did you mean 'gpu'?"]),
    ("--nproc_per_node=gpu train.py", {"CUDA_VISIBLE_DEVICES": ""}, ["no gpu found by CUDA_VISIBLE_DEVICES"]),
    ("train.py", {"PET_NPROC_PER_NODE": "0"}, ["PET_NPROC_PER_NODE=0:"]),
    ("train.py", {"PET_STANDALONE": "yes"}, ["PET_STANDALONE=yes: not 0 or 1"]),
    ("--nnodes x train.py", {}, ["--nnodes x:", "N or MIN:MAX"]),
    ("--nnodes 0 train.py", {}, ["at least one node"]),
    ("--nnodes 4:2 train.py", {}, ["4 is more than the maximum 2", "did you mean 2:4?"]),
    ("--nnodes 1:2:3 train.py", {}, ["N or MIN:MAX"]),
    ("--nnodes 2 --node-rank 2 train.py", {}, ["--node-rank 2:", "give 0 to 1"]),
    ("--standalone --nnodes 2 train.py", {}, ["--standalone means one node"]),
    ("--standby train.py", {}, ["--standby means to take the place of a lost node", "give --nnodes"]),
    ("--standalone=yes train.py", {}, ["takes no value"]),
    ("--master-port 65536 train.py", {}, ["--master-port 65536:", "0 to 65535"]),
    ("--master-port http train.py", {}, ["--master-port http:"]),
    ("--nnodes 2 --master-port 0 train.py", {}, ["must agree on one port"]),
    ("--max-restarts -1 train.py", {}, ["--max-restarts -1:"]),
    ("--recover-strategy retyr train.py", {}, ["--recover-strategy retyr:", "did you mean 'retry'?"]),
    ("train.py", {"ONWARD_RECOVER_STRATEGY": "dmup"}, ["ONWARD_RECOVER_STRATEGY=dmup:", "did you mean 'dump'?"]),
    ("--recover-strategy= train.py", {}, ["--recover-strategy :", "names no policy", "or write exit"]),
    ("--recover-strategy , train.py", {}, ["--recover-strategy ,:", "names no policy"]),
    ("--spares eahc train.py", {}, ["--spares eahc:", "did you mean 'each'?"]),
    ("--view 3d train.py", {}, ["auto, live, plain"]),
    ("-o yaml train.py", {}, ["text, json"]),
    ("--hang-floor 0 train.py", {}, ["more than 0"]),
    ("--hang-floor nan train.py", {}, ["more than 0"]),
    ("--grace -1 train.py", {}, ["0 or more"]),
    ("--grace inf train.py", {}, ["0 or more"]),
    ("--redirects 4 train.py", {}, ["--redirects 4:", "0:1,1:3"]),
    ("--tee 0:4 train.py", {}, ["--tee 0:4:"]),
    ("--local-ranks-filter a train.py", {}, ["0,1,2"]),
    ("--signals-to-handle SIGTREM train.py", {}, ["did you mean 'SIGTERM'?"]),
    ("--signals-to-handle SIGKILL train.py", {}, ["SIGKILL is not a signal that can be handled"]),
    ("--retry-on ( train.py", {}, ["'(' is not a regular expression"]),
    (".", {}, ["script . is a directory without a __main__.py"]),
    ("--preload a-b train.py", {}, ["not names of modules"]),
    ("-m no.such.one", {}, ["there is no module no, neither here nor on PYTHONPATH"]),
    ("-m pkg.trian", {}, ["there is no module pkg.trian"]),
    ("-m pkg", {}, ["module pkg is a package without a __main__.py"]),
    ("--preload numpi train.py", {}, ["--preload numpi: no module numpi", "did you mean 'numpy'?"]),
    ("--preload no_such_one.sub train.py", {}, ["no module no_such_one", "PYTHONPATH"]),
    ("--job-name ../x train.py", {}, ["--job-name ../x:"]),
    ("--token-file nowhere train.py", {}, ["--token-file nowhere:"]),
    ("--log-dir train.py/logs train.py", {}, ["--log-dir train.py/logs: cannot write there (Not a directory)"]),
    ("--log-dir train.py train.py", {}, ["cannot write there"]),
    ("--log-dir /proc/onward train.py", {}, ["cannot write there"]),
    ("-m train.py", {}, ["write -m train, or drop -m"]),
    ("-m ./src/train.py", {}, ["write -m src.train"]),
    ("-m --no-python pkg.train", {}, ["exclude each other"]),
    ("--no-python no-such-program", {}, ["neither on PATH nor as a file"]),
    ("--no-python train.py", {}, ["./train.py is not executable", "chmod +x"]),
    ("--nnodes -- train.py", {}, ["--nnodes needs a value; write --nnodes N|MIN:MAX"]),
    ("--role --standalone train.py", {}, ["--role needs a value"]),
]


@pytest.mark.parametrize(("line", "env", "texts"), BAD, ids=[f"{line} {env or ''}" for line, env, _ in BAD])
def test_bad_input_is_one_clear_problem(line: str, env: dict[str, str], texts: list[str]) -> None:
    found = problems(line, env)
    assert len(found) == 1, found
    for text in texts:
        assert text in found[0]


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        "--nnodes 3:1 --nproc_per_node zero --foo 1 --bar=2 --spaers one --spares eahc --recover-strategy retyr,dmup"
        " --retry-on ( --retry-on [ --master-port -5 --log-dir train.py/x nowhere.py --unknown-of-the-script"
    )
    expected = [
        "--foo", "--bar", "--spaers", "--nnodes 3:1", "--nproc_per_node zero", "nowhere.py", "--master-port -5",
        "'retyr'", "'dmup'", "'('", "'['", "--spares eahc", "--log-dir",
    ]  # fmt: skip
    for text in expected:
        assert [problem for problem in found if text in problem], (text, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize("line", ["--help", "-h", "--nproc-per-node 0 -h", "--nope --help", "--role -h"])
def test_help_can_be_asked_for_anywhere_before_the_script(line: str) -> None:
    with pytest.raises(HelpRequested):
        run(line)


def test_help_names_every_flag() -> None:
    for action in TORCH_ACTIONS:
        assert f"--{action.dest.replace('_', '-')}" in RUN_HELP
    for name in [
        "recover-strategy",
        "spares",
        "preload",
        "chaos",
        "hang-floor",
        "grace",
        "job-name",
        "job-id",
        "no-warm",
    ]:
        assert f"--{name}" in RUN_HELP
    for name in ["quiet", "view", "output", "retry-on", "token-file", "help"]:
        assert f"--{name}" in RUN_HELP
    assert "ONWARD_RECOVER_STRATEGY" in RUN_HELP
    assert max(map(len, RUN_HELP.splitlines())) <= 110


POD = {"ONWARD_NNODES": "4", "ONWARD_NODE_RANK": "2", "ONWARD_RDZV_ENDPOINT": "10.0.0.1:9601"}
POD |= {"ONWARD_LOCAL_ADDR": "10.0.0.3", "ONWARD_JOB_NAME": "gpt", "ONWARD_MANAGER_PORT": "9601"}

ALONE = {"ONWARD_NNODES": "1", "ONWARD_NODE_RANK": "0"}


@pytest.mark.parametrize(
    ("line", "env", "expected"),
    [
        ("train.py", {}, (4, 2, "10.0.0.1:9601", True)),
        ("--nnodes 4 --node_rank 2 --master_addr 10.0.0.9 train.py", {}, (4, 2, "10.0.0.1:9601", True)),
        ("--rdzv-endpoint 10.0.0.7:1 train.py", {}, (4, 2, "10.0.0.7:1", True)),
        ("train.py", {"PET_RDZV_ENDPOINT": "10.0.0.8:2"}, (4, 2, "10.0.0.8:2", True)),
        ("--nnodes 2:4 train.py", {}, (4, 2, "10.0.0.1:9601", True)),
        ("--nnodes 1 train.py", {}, (1, 0, "", False)),  # a job of its own, not the pod's
        ("--standalone train.py", {}, (1, 0, "", False)),
        ("--nnodes 4 train.py", {"ONWARD_NNODES": "1:4"}, (4, 2, "10.0.0.1:9601", True)),
        ("train.py", ALONE, (1, 0, "10.0.0.1:9601", True)),  # the operator asks it how it goes
        ("--nnodes 1 --rdzv-endpoint 10.0.0.7:1 train.py", ALONE, (1, 0, "10.0.0.7:1", False)),
        ("--standalone train.py", ALONE, (1, 0, "", False)),
    ],
)
def test_a_pod_is_told_its_place_by_environment(line: str, env: dict[str, str], expected: tuple[object, ...]) -> None:
    told = parse_run(line.split(), {**POD, **env})
    assert (told.max_nodes, told.node_rank, told.rdzv_endpoint, told.several) == expected
    assert (told.job_name, told.manager_port) == ("gpt", 9601)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "gpt-master-0.default.svc"])
@pytest.mark.parametrize("name", ["ONWARD_RDZV_ENDPOINT", "ONWARD_MANAGER"])
def test_where_its_job_meets_is_read_as_the_operator_writes_it(name: str, address: str) -> None:
    own = door_of("$(POD_IP)").replace("$(POD_IP)", address)  # as its node writes it out
    told = parse_run(["train.py"], {**POD, name: f"{door_of(address)},{own}"})
    assert endpoints(told) == [(address, 9601)] * 2


def test_a_job_of_its_own_in_a_pod_does_not_meet_at_the_manager_of_the_pods_job() -> None:
    told = parse_run(["--nnodes", "1", "train.py"], {**POD, "ONWARD_MANAGER": "10.0.0.4:9601", "ONWARD_STANDBY": "1"})
    assert (told.manager, told.standby, told.several) == ("", False, False)


def test_a_stand_in_is_told_by_environment() -> None:
    assert parse_run(["train.py"], {**POD, "ONWARD_STANDBY": "1"}).standby
    alone = parse_run(["train.py"], {**POD, **ALONE, "ONWARD_STANDBY": "1"})
    assert (alone.standby, alone.several) == (True, True), "beside the only pod of a job"


FLAGS = sorted({way for action in TORCH_ACTIONS for way in _spellings(action)})
OWN = ["--recover-strategy", "--spares", "--preload", "--chaos", "--hang-floor", "--grace", "--job-name", "--retry-on"]
fragments = st.one_of(
    st.sampled_from([*FLAGS, *OWN, "--view", "-o", "--token-file", "--", "-", "train.py", "auto", "gpu", "1:2", "0"]),
    # No slash: a log directory is really made, and it should stay below the test's own.
    st.text(alphabet=st.characters(exclude_characters="/"), max_size=12),
    st.builds("{}={}".format, st.sampled_from([*FLAGS, *OWN]), st.text(alphabet="019.:,-x(\0\ud800é ", max_size=8)),
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(fragments, max_size=10),
    st.dictionaries(st.sampled_from(["PET_NNODES", "PET_TEE", "ONWARD_SPARES"]), st.text()),
)
def test_random_lines_give_settings_or_a_usage_error(argv: list[str], env: dict[str, str]) -> None:
    try:
        told = parse_run(argv, env)
    except (HelpRequested, UsageError) as refused:
        problems = getattr(refused, "problems", ["help"])
    else:
        problems = []
        assert told.nproc >= 1
        assert told.policies[-1] is Policy.EXIT
        assert argv[len(argv) - len(told.script_args) :] == list(told.script_args)
    assert all(problem.strip() for problem in problems)
