"""What the ranks print: all of it in files, and on the screen what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import Onward

from onward.agent.logs import Follower, error_file, last_error, last_traceback, tail

SCRIPT = """
    import sys
    print("out", RANK)
    print("err", RANK, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], {"out 0", "out 1", "err 0", "err 1"}),
        (["--redirects", "1:3"], {"out 0", "err 0"}),
        (["-r", "3", "--tee", "0:1,1:2"], {"out 0", "err 1"}),
        (["--local_ranks_filter", "1"], {"out 1", "err 1"}),
        (["--quiet", "--redirects", "3"], set()),
    ],
    ids=["all", "redirects", "tee", "filter", "quiet"],
)
def test_what_is_on_the_screen_and_what_in_files(onward: Onward, flags: list[str], shown: set[str]) -> None:
    job = onward.run(*flags, onward.script(SCRIPT))
    assert job.process.returncode == 0, job.err
    for rank in (0, 1):
        for stream, text, other in (("out", job.out, job.err), ("err", job.err, job.out)):
            words = f"{stream} {rank}"
            line = f"[rank {rank}] {words}\n"
            assert (line in text) == (words in shown), f"{words!r} on the screen: {text}"
            assert line not in other, "each on its own stream"
            (name,) = job.log_files(f"rank{rank}.*.std{stream}.log")
            assert job.log(name) == f"{words}\n", "in its file in any case"
    if "--quiet" in flags:
        assert job.out == job.err == ""


def test_whatever_a_rank_prints_is_shown_and_kept(onward: Onward) -> None:
    script = """
        import sys
        os.write(1, b"\\xff\\xfe not text\\n")
        print("x" * 100000)
        print("no end of line", end="")
        sys.stdout.flush()
        os.system("echo from a child")
    """
    job = onward.run(onward.script(script), nproc=1)
    assert job.process.returncode == 0, job.err
    assert "not text" in job.out
    assert job.out.count("x") >= 100000
    assert "no end of line" in job.out
    assert "from a child" in job.out
    (name,) = job.log_files("rank0.*.stdout.log")
    (path,) = job.logs.glob(f"*/{name}")
    assert path.read_bytes().startswith(b"\xff\xfe not text\n")


# ------------------------------------------------------------------------------------------------ following a file


def followed(path: Path) -> tuple[Follower, list[str]]:
    lines: list[str] = []
    return Follower(path, lines.append), lines


def test_lines_appear_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower, lines = followed(path)
    follower.poll()
    assert lines == []
    path.write_bytes(b"one\ntw")
    follower.poll()
    assert lines == ["one"]
    path.write_bytes(b"one\ntwo\n\nrest")
    follower.poll()
    assert lines == ["one", "two", ""]
    follower.poll(last=True)
    assert lines == ["one", "two", "", "rest"]


def test_a_line_without_end_is_cut_and_not_gathered_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower, lines = followed(path)
    path.write_bytes(b"x" * 1_000_000)
    follower.poll()
    assert sum(len(line) for line in lines) > 900_000


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(10000)) + b"\xff\n")
    assert tail(path, 3) == ("line 9998", "line 9999", "\ufffd")
    assert tail(tmp_path / "nothing", 3) == ()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Traceback"}}}', ("E: x", "Traceback")),
        ('{"message": "in one word"}', ("in one word", "")),
        ("", ("", "")),
        ("[1, 2]", ("", "")),
        ('{"message": 3}', ("", "")),
        ('{"message": {"message": "x", "extraInfo": 5}}', ("x", "")),
        ("[" * 100000, ("", "")),
    ],
)
def test_the_error_file_of_torch_may_say_anything(tmp_path: Path, content: str, expected: tuple[str, str]) -> None:
    path = tmp_path / "error.json"
    path.write_text(content)
    assert error_file(path) == expected


def test_no_error_file(tmp_path: Path) -> None:
    assert error_file(tmp_path / "nothing") == ("", "")


def test_the_error_is_found_behind_the_rank_that_torch_puts_in_front(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = ("Traceback (most recent call last):", '  File "x.py", line 1', "KeyError: 7")
    path.write_text("".join(f"[rank3]: {line}\n" for line in lines))
    assert last_error(tail(path, 10)) == "KeyError: 7"
    assert last_traceback(tail(path, 10))[1] == '  File "x.py", line 1'
