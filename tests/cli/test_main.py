"""The verbs: what is known, what is meant, and what is said about the rest."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from onward import __version__
from onward.cli.main import commands, main


def test_help_lists_every_verb_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in ("run", "demo", "chaos", "ps", "status", "manager", "version"):
        assert f"\n  {verb} " in text
    assert "128+n" in text
    assert "the job failed" in text
    assert "..." not in text.partition("Jobs:")[2], "each verb is told in a whole sentence"


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: onward" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("stauts", "status"), ("demmo", "demo"), ("rn", "run"), ("chaso", "chaos"), ("mangaer", "manager")],
)
def test_an_unknown_verb_gets_a_did_you_mean(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert f"did you mean onward {meant}?" in capsys.readouterr().err


def test_a_script_in_place_of_a_verb_is_told_how_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train.py", "--lr", "1"]) == 2
    assert "write: onward run train.py" in capsys.readouterr().err


def test_an_option_like_another_gets_a_did_you_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--versoin"]) == 2
    assert "Did you mean '--version'?" in capsys.readouterr().err


def test_a_verb_like_nothing_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "the commands are run, demo, " in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(set(commands.commands) - {"run"}))
def test_every_verb_has_help_and_refuses_an_unknown_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"Usage: onward {verb}" in capsys.readouterr().out
    assert main([verb, "--no-such-option"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("onward: ")
    assert "--no-such-option" in captured.err


def test_run_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "--nproc-per-node" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"onward {__version__}\n"


LATE = """
import os, signal, sys
from onward.ending import exit_code_of

class Late:
    kill, me, number = os.kill, os.getpid(), signal.SIGTERM

    def __del__(self):  # when Python takes its modules apart, and has taken back all handlers
        Late.kill(Late.me, Late.number)

def command():
    signal.signal(signal.SIGTERM, lambda *_: None)
    return 5

late = Late()
sys.exit(exit_code_of(command))
"""


def test_a_signal_that_comes_when_all_is_over_does_not_change_the_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(LATE)], timeout=60, check=False)
    assert done.returncode == 5
