"""What is launched and how: scripts, modules, programs; their arguments, their directory, their input."""

from __future__ import annotations

import json
import os
import sys

import pytest
from launched import Onward, children, command
from waiting import until

ODD = ["--epochs", "3", "-m", "a b", "", "--", "-r", "*", "'quoted'", "ünïcode", "--nproc-per-node=9"]
SHOWS = """
    import json, sys
    tell("argv", json.dumps([sys.argv, os.getcwd(), sys.path[0], __name__, sys.stdin.read()]))
"""


def shown(job) -> list:
    assert job.process.returncode == 0, job.err
    return json.loads(job.said("argv", 1)[0])


def test_a_script_and_its_arguments_untouched(onward: Onward) -> None:
    script = onward.script(SHOWS)
    cwd = onward.tmp / "elsewhere"
    cwd.mkdir()
    argv, where, first, name, stdin = shown(onward.run(script, *ODD, nproc=1, cwd=cwd))
    assert argv == [script, *ODD]
    assert where == str(cwd)
    assert first == str(onward.tmp), "as with python: the directory of the script"
    assert name == "__main__"
    assert stdin == "", "nobody can answer a rank's question"


def test_in_a_directory_that_has_been_deleted(onward: Onward) -> None:
    script = onward.script("tell('up', RANK)")
    gone = onward.tmp / "gone"
    gone.mkdir()
    job = onward.run(script, cwd=gone, prefix=["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh"])
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("up", 2)) == ["0", "1"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_with_streams_that_are_closed(onward: Onward, closed: str) -> None:
    """What is opened next gets their numbers, and is written to by whoever prints."""
    script = onward.script("tell('up', RANK); print('hello')")
    job = onward.run(script, prefix=["sh", "-c", f'exec "$@" {closed}', "sh"])
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("up", 2)) == ["0", "1"]
    assert "Traceback" not in job.err


def test_a_module(onward: Onward) -> None:
    (onward.tmp / "package").mkdir()
    onward.script(SHOWS, "package/__main__.py")
    onward.script("", "package/__init__.py")
    argv, _, first, name, _ = shown(onward.run("-m", "package", *ODD, nproc=1))
    assert argv == [str(onward.tmp / "package/__main__.py"), *ODD]
    assert first == str(onward.tmp)
    assert name == "__main__"


def test_a_script_behind_a_link_finds_its_neighbours(onward: Onward) -> None:
    """As with python: the directory of the file itself is searched."""
    (onward.tmp / "package").mkdir()
    script, link = onward.script(SHOWS, "package/job.py"), onward.tmp / "link.py"
    link.symlink_to(script)
    argv, _, first, *_ = shown(onward.run(str(link), nproc=1))
    assert argv == [str(link)]
    assert first == str(onward.tmp / "package")


def test_a_directory_is_all_that_is_searched_for_it(onward: Onward) -> None:
    app = onward.tmp / "app"
    app.mkdir()
    onward.script(SHOWS.replace("sys.path[0]", "sys.path[:2]"), "app/__main__.py")
    argv, _, first, name, _ = shown(onward.run(str(app), nproc=1))
    assert argv == [str(app)]
    assert first[0] == str(app)
    assert first[1] != str(onward.tmp), "what stands beside it could hide a library"
    assert name == "__main__"


def test_what_a_script_defines_is_there_to_the_end(onward: Onward) -> None:
    """Threads and exit handlers save what they have, when the script itself has ended."""
    body = """
        import atexit, pickle, threading
        class Config:
            pass
        def save(who):
            tell(who, type(pickle.loads(pickle.dumps(Config()))).__module__)
        def late():
            threading.main_thread().join()
            save("thread")
        atexit.register(save, "handler")
        threading.Thread(target=late).start()
    """
    job = onward.run(onward.script(body), nproc=1)
    assert job.process.returncode == 0, job.err
    assert job.said("thread") == job.said("handler") == ["__main__"]


def test_what_was_printed_is_there_however_the_process_ends(onward: Onward) -> None:
    """Without the end of its line, too: it may be all that is known of the place where it died."""
    body = """
        import signal, sys
        assert (sys.stdout.name, sys.stdout.mode) == ("<stdout>", "w"), "as Python has them"
        print("half a line", end="")
        sys.stderr.write("and here")
        sys.__stdout__.buffer.write(b", more")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    job = onward.run("--max-restarts", "1", onward.script(body), nproc=1)
    assert job.process.returncode == 1
    assert job.log("rank0.001.stdout.log") == "half a line, more"
    assert job.log("rank0.001.stderr.log") == "and here"


@pytest.mark.parametrize(
    ("ends", "code"), [("sys.__excepthook__(kind, error, tb)", 1), ("sys.exit(9)", 9), ("1 / 0", 1)]
)
def test_a_scripts_own_way_to_tell_its_errors(onward: Onward, ends: str, code: int) -> None:
    body = f"""
        import sys
        def hook(kind, error, tb):
            tell("hook", (kind.__name__, error, tb.tb_frame.f_code.co_filename == __file__))
            {ends}
        def torch_puts_in_front(old_hook):
            def _distributed_excepthook(*args):
                print("[rank0]: something", file=sys.stderr)
                old_hook(*args)
            return _distributed_excepthook
        sys.excepthook = torch_puts_in_front(hook)
        raise ValueError("of the script")
    """
    job = onward.run("--max-restarts", "1", onward.script(body), nproc=1)
    assert job.said("hook")[0] == "('ValueError', ValueError('of the script'), True)"
    assert f"exit code : {code}" in job.err
    stderr = job.log("rank0.001.stderr.log")
    assert "[rank0]" not in stderr, "the screen says who speaks"
    assert ("ZeroDivisionError" in stderr) == (ends == "1 / 0")
    assert ("ValueError: of the script" in stderr) == (code == 1)


def test_ranks_that_seed_nothing_draw_different_numbers(onward: Onward) -> None:
    """NumPy is seeded when it is imported, in the warm parent: all would have the same stream."""
    body = """
        import random, numpy
        tell("drawn%d" % RANK, (random.random(), numpy.random.rand()))
        tell("up", os.getpid())
        wait_for("finish")
    """
    env = onward.stub_torch()
    job = onward.start("--preload", "numpy", "--max-restarts", "9", onward.script(body), warm=True, env=env)
    job.pids("up", 2)
    drawn = [eval(job.said(f"drawn{rank}")[0]) for rank in (0, 1)]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]
    onward.go("finish")
    assert job.wait() == 0, job.err


def test_a_program(onward: Onward) -> None:
    program = onward.tmp / "program"
    says = 'echo "$0 $1 $2 rank $RANK of $WORLD_SIZE"'
    program.write_text(f"#!/bin/sh\n{says} >> {onward.tmp}/told.ran\ncat >&2\nexit $3\n")
    program.chmod(0o755)
    job = onward.run("--no-python", str(program), "one", "t w o", "0")
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("ran", 2)) == [f"{program} one t w o rank {r} of 2" for r in (0, 1)]
    failing = onward.run("--no_python", "--max_restarts", "1", str(program), "one", "two", "5", nproc=1, name="failing")
    assert failing.process.returncode == 1
    assert "exit code : 5" in failing.err


def test_another_interpreter(onward: Onward) -> None:
    """PYTHON_EXEC, as torchrun knows it."""
    wrapper = onward.tmp / "python-of-mine"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {onward.tmp}/told.asked\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    script = onward.script(SHOWS)
    argv, *_ = shown(onward.run(script, "--flag", nproc=1, env={"PYTHON_EXEC": str(wrapper)}, warm=True))
    assert argv == [script, "--flag"]
    assert (onward.tmp / "told.asked").read_text() == f"-u {script} --flag\n"


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_files_in_the_current_directory_shadow_nothing_of_ours(onward: Onward, warm: bool) -> None:
    cwd = onward.tmp / "work"
    cwd.mkdir()
    told = str(onward.tmp / "told.shadowed")
    for name in ("onward.py", "torch.py", "msgspec.py", "asyncio.py", "click.py", "runpy.py", "socket.py"):
        (cwd / name).write_text(f"print({name!r}, file=open({told!r}, 'a'))\nraise SystemExit(99)\n")
    script = onward.script("tell('ran', RANK)")
    job = onward.run(script, cwd=cwd, warm=warm, env=onward.stub_torch())
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("ran", 2)) == ["0", "1"]
    assert job._told("shadowed") == []


def test_what_is_no_text_is_passed_on_all_the_same(onward: Onward) -> None:
    script = onward.script("tell('bytes', (os.environb[b'ODD'], os.fsencode(__import__('sys').argv[1])))")
    odd = os.fsdecode(b"\xff\xfe")
    for warm in (False, True):
        env = {"ODD": odd, **onward.stub_torch()}
        job = onward.run(script, odd, nproc=1, env=env, warm=warm, name=f"warm{warm}")
        assert job.process.returncode == 0, job.err
    assert (onward.tmp / "told.bytes").read_text().splitlines() == [str((b"\xff\xfe", b"\xff\xfe"))] * 2


def test_no_secret_is_on_a_command_line(onward: Onward) -> None:
    """Everybody on the machine can read those."""
    job = onward.start(onward.script("tell('up', os.getpid())\nwait_for('finish')"), env={"MY_SECRET": "hunter2"})
    ranks = job.pids("up", 2)
    token = job.control["token"]
    for pid in {*ranks, *children(job.pid), job.pid}:
        assert "hunter2" not in command(pid)
        assert token not in command(pid)
    (directory,) = job.run_dirs
    assert directory.stat().st_mode & 0o077 == 0
    assert all(p.stat().st_mode & 0o077 == 0 for p in directory.glob("*.json"))
    onward.go("finish")
    assert job.wait() == 0


@pytest.mark.parametrize("problem", ["script goes", "not python"])
def test_a_script_that_cannot_be_run(onward: Onward, problem: str) -> None:
    """Whatever is wrong with it, the banner says so."""
    (onward.tmp / "helper.py").write_text("def broken(:")
    script = onward.script("import helper" if problem == "not python" else "os.remove(__file__); os._exit(1)")
    job = onward.run("--max_restarts", "1", script, nproc=1)
    assert job.process.returncode == 1
    expected = "SyntaxError" if problem == "not python" else "No such file"
    assert expected in job.err[job.err.index("Root Cause") :]


def test_the_warm_parent_is_used_and_is_where_ranks_come_from(onward: Onward) -> None:
    body = "import sys\ntell('torch', 'torch' in sys.modules)\ntell('up', os.getpid())\nwait_for('finish')"
    script = onward.script(body)
    job = onward.start(script, warm=True, env=onward.stub_torch())
    ranks = job.pids("up", 2)
    assert job.said("torch", 2) == ["True", "True"]
    until(lambda: job.warm, "a warm parent")
    assert job.warm not in ranks
    onward.go("finish")
    assert job.wait() == 0
