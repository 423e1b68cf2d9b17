"""What people see: prefixes and colours, calm notes, a live view that fits, and writing that never waits."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import environment
from rich.console import Console

from onward.agent.observer import JobView, Outcome, RankView
from onward.cli.live import Scene, draw, one_line
from onward.cli.pen import HELD_LINES, Pen
from onward.cli.screen import PlainScreen, colours_wanted, tamed
from onward.cli.story import cures, opening, summary
from onward.core.facts import FaultReport
from onward.core.incident import Incident

ECHO = FaultReport(
    kind="exception", rank=0, incarnation=1, text="RuntimeError: reset by peer", retryable="communication"
)
KILL = FaultReport(kind="signal", rank=2, incarnation=1, step=50, text="SIGKILL")


def incident(number: int = 1, faults: tuple[FaultReport, ...] = (KILL,), **more: object) -> Incident:
    opened = Incident(number=number, faults=faults, step=50, opened_at=10.0)
    return replace(opened, **more)  # type: ignore[arg-type]


def healed(number: int = 1) -> Incident:
    why = ("rank 2 killed (SIGKILL); restarting the process of rank 2 in place", "going on at step 50")
    return (
        incident(number, policy="recover-in-place", why=why).marked("detect", 10.0).marked("mend", 10.05).closed(10.2)
    )


def view(ranks: int = 4, **more: object) -> JobView:
    rows = tuple(RankView(r, 1000 + r, 1, "training", 42, 2000 + r) for r in range(ranks))
    plain = JobView("Running", 3, 42, 100, 1.25, 0.1, 0.2, rows, 0, 0, True, 65.0, name="gpt", log_dir="/logs")
    return replace(plain, **more)  # type: ignore[arg-type]


class Pipe:
    """The reading end of a stream that a screen can write to."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self.stream = open(write, "w", encoding="utf-8")  # noqa: SIM115

    def text(self) -> str:
        self.stream.close()
        with open(self._read, encoding="utf-8") as f:
            return f.read()


def shown(*calls: object, quiet: bool = False) -> tuple[str, str]:
    """What a plain screen writes to (stdout, stderr) for these calls."""
    out, err = Pipe(), Pipe()
    screen = PlainScreen(quiet, out.stream, err.stream)
    for call in calls:
        call(screen)  # type: ignore[operator]
    screen.close()
    return out.text(), err.text()


# Lines


def test_a_line_carries_its_rank_and_keeps_its_stream() -> None:
    out, err = shown(lambda s: s.line(3, "out", "hello"), lambda s: s.line(1, "err", "oops"))
    assert out == "[rank 3] hello\n"
    assert err == "[rank 1] oops\n"


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    out, _ = shown(lambda s: s.line(0, "out", " 10%\r 50%\r100%\r"))
    assert out == "[rank 0] 100%\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "env", "wanted"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals_whose_user_wants_them(
    stream: io.StringIO, env: dict[str, str], wanted: bool
) -> None:
    assert colours_wanted(stream, env) is wanted


# Incidents


def test_an_incident_is_one_line_when_it_opens_and_a_block_when_it_is_over() -> None:
    _, err = shown(lambda s: s.incident(incident(), True), lambda s: s.incident(healed(), False))
    first, second, cure, times = err.splitlines()
    assert "incident 1: rank 2 killed (SIGKILL) at step 50" in first
    assert "incident 1 over after 200 ms" in second
    assert "recover-in-place: restarting the process of rank 2 in place; going on at step 50" in cure
    assert "detect 0 · mend 50 · resume 150" in times


AGAIN = "rank 2 killed (SIGKILL); no copy is left; restarting all 4 ranks"


def test_a_full_restart_says_from_where_all_go_on_and_what_is_lost() -> None:
    again = incident(policy="exit", why=(AGAIN,))
    over = replace(again.decided("exit", "resuming from the checkpoint of step 40").closed(11.0), lost=10)
    _, err = shown(lambda s: s.incident(again, True), lambda s: s.incident(over, False))
    first, second, cure, _ = err.splitlines()
    assert first.endswith("rank 2 killed (SIGKILL) at step 50; no copy is left; restarting all 4 ranks")
    assert "incident 1 over after 1000 ms" in second
    assert cure.endswith("restarting all 4 ranks; resuming from the checkpoint of step 40; 10 steps lost")


def test_of_a_script_without_the_library_nobody_knows_what_is_lost() -> None:
    assert "lost" not in cures(incident(policy="exit", why=(AGAIN,)).closed(11.0))
    assert cures(incident(policy="dump", why=(AGAIN,), lost=0)).endswith("0 steps lost")
    assert "lost" not in cures(replace(healed(), lost=0)), "a step that is redone in place never was"


def test_where_nobody_counted_steps_the_summary_does_not_either() -> None:
    done = Outcome(exit_code=0, phase="Succeeded", reason="", root_cause=None, elapsed_s=2.0, log_dir="/logs")
    assert summary(done) == "Succeeded: 0 incidents, 2.0 s; logs in /logs"
    assert "0 steps, 0 incidents, 5 steps lost" in summary(replace(done, steps_lost=5))
    assert "1 step, 0 incidents, 0 steps lost, goodput 100.0%" in summary(replace(done, steps=1))


def test_one_that_nothing_cured_is_one_line_with_the_reason() -> None:
    again = incident(policy="exit", why=(AGAIN,))
    over = again.decided("exit", "the limit of 3 restarts is used up").given_up(11.0)
    _, err = shown(lambda s: s.incident(again, True), lambda s: s.incident(over, False))
    assert err.splitlines()[1].endswith("incident 1: the limit of 3 restarts is used up")


def test_an_error_of_the_script_is_called_so_in_its_incident() -> None:
    bug = "the same error came back at the same step: this is an error in the script"
    why = (f"rank 2 killed (SIGKILL); {bug}; saving a surviving copy", "saving step 21", bug)
    over = incident(policy="exit", why=why).given_up(11.0)
    _, err = shown(lambda s: s.incident(incident(), True), lambda s: s.incident(over, False))
    assert err.splitlines()[1].endswith(f"incident 1: saving step 21; {bug}")


def test_a_long_story_is_shortened_to_its_beginning_and_its_end() -> None:
    later = [f"rank 2 killed (SIGKILL), and rank 3; try {n}; it failed" for n in range(8)]
    long = incident(policy="dump", why=("rank 2 killed (SIGKILL); trying", *later, "going on at step 50"))
    assert cures(long) == "dump: trying; 8 more decisions; it failed; going on at step 50"


def test_why_all_had_to_start_again_is_not_left_out() -> None:
    gone = "no complete copy of the state is left"
    tries = [f"rank 2 killed (SIGKILL); try {n}" for n in range(3)]
    why = (*tries, f"rank 2 killed (SIGKILL); {gone}; restarting all 4 ranks", "starting from the beginning")
    long = incident(policy="exit", why=why)
    assert cures(long) == f"exit: try 0; 2 more decisions; {gone}; restarting all 4 ranks; starting from the beginning"
    short = incident(policy="exit", why=why[2:])
    assert cures(short) == f"exit: try 2; {gone}; restarting all 4 ranks; starting from the beginning"


def test_an_incident_that_changes_is_told_once() -> None:
    _, err = shown(*[lambda s: s.incident(incident(), True)] * 5)
    assert len(err.splitlines()) == 1


def test_an_echo_waits_for_its_cause() -> None:
    _, err = shown(
        lambda s: s.incident(incident(faults=(ECHO,)), True),
        lambda s: s.status(view()),
        lambda s: s.incident(incident(faults=(ECHO, KILL)), True),
    )
    told = [line for line in err.splitlines() if "incident" in line]
    assert len(told) == 1
    assert "rank 2 killed" in told[0]


def test_an_echo_that_stays_alone_is_told_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("onward.cli.screen.time.monotonic", lambda: now[0])

    def later(screen: PlainScreen) -> None:
        now[0] += 1.0
        screen.status(view())

    _, err = shown(lambda s: s.incident(incident(faults=(ECHO,)), True), later)
    assert "raised a retryable error" in err


def test_decisions_about_the_echo_are_not_part_of_the_story() -> None:
    why = (
        "rank 0 raised a retryable error (RuntimeError: reset by peer); redoing the step in place, no process ends",
        "rank 2 killed (SIGKILL); restarting the process of rank 2 in place",
    )
    i = incident(faults=(ECHO, KILL), policy="recover-in-place", why=why)
    assert cures(i) == "recover-in-place: restarting the process of rank 2 in place"
    assert "redoing" not in opening(i)


def test_details_are_not_shown_and_quiet_means_quiet() -> None:
    assert shown(lambda s: s.detail("all ranks are here")) == ("", "")
    assert shown(lambda s: s.note("n"), lambda s: s.incident(healed(), False), quiet=True) == ("", "")


# The live view


def drawn(scene: Scene, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), legacy_windows=False)
    with console.capture() as capture:
        console.print(draw(scene, height))
    return capture.get().rstrip("\n").split("\n")


def scene_of(jobview: JobView, incidents: int = 0, lines: int = 0) -> Scene:
    scene = Scene(title="a title")
    scene.see(jobview)
    scene.incidents = [healed(n + 1) for n in range(incidents)]
    for n in range(lines):
        scene.lines.append(one_line(f"line {n} " + "x" * 300))
    return scene


@pytest.mark.parametrize("height", [12, 24, 50, 100])
@pytest.mark.parametrize("ranks", [1, 4, 64, 1000])
@pytest.mark.parametrize("incidents", [0, 1, 20])
def test_the_view_fits_the_terminal(height: int, ranks: int, incidents: int) -> None:
    lines = drawn(scene_of(view(ranks), incidents, 100), 80, height)
    assert len(lines) <= height
    assert all(len(line) <= 80 for line in lines)


def test_everything_asked_for_is_on_the_screen() -> None:
    text = "\n".join(drawn(scene_of(view(), incidents=1, lines=3), 120, 40))
    for part in ("gpt", "Running", "generation 3", "1:05", "step 42/100", "loss 1.2500", "1002", "2003", "a title"):
        assert part in text
    assert "200 ms  =  detect 0 · mend 50 · resume 150" in text
    assert "line 2" in text


def test_ranks_in_trouble_come_first_when_not_all_fit() -> None:
    ranks = tuple(replace(r, stage="exited" if r.rank == 700 else "training") for r in view(1000).ranks)
    text = "\n".join(drawn(scene_of(replace(view(), ranks=ranks)), 100, 24))
    assert "1700" in text
    assert "more" in text


def test_the_rate_is_over_the_last_seconds_and_starts_anew_after_a_restart() -> None:
    scene = Scene()
    for second in range(20):
        scene.see(view(step=second * 10, elapsed_s=float(second)))
    assert 9.0 < scene.rate < 11.0
    scene.see(view(step=0, elapsed_s=21.0))
    assert scene.rate == 0.0


@pytest.mark.parametrize(
    ("raw", "clean"),
    [("\x1b[31mred\x1b[0m", "red"), ("\x1b[2J\x1b[Hgone", "gone"), ("a\tb", "a       b"), ("x\x07\x08y", "xy"),
     ("\x1b]0;title\x07text", "text"), ("10%\r20%", "20%")],
)  # fmt: skip
def test_output_of_ranks_cannot_draw_on_our_screen(raw: str, clean: str) -> None:
    assert tamed(raw) == clean


SHOW = """
import select, sys
sys.path.insert(0, {root!r})
from onward.cli.screen import make_screen
screen = make_screen({view!r}, False, False)
print(type(screen).__name__, file=open({note!r}, "w"))
screen.begin("title")
select.select([{enough}], [], [], 30)
screen.close()
"""


def on_a_terminal(tmp_path: Path, wanted: str, term: str = "xterm", drawings: int = 0) -> tuple[str, bytes]:
    """The class of the screen chosen on a pseudo terminal, and what it wrote there in so many drawings."""
    note, (enough, say_enough) = tmp_path / "kind", os.pipe()
    ours, theirs = pty.openpty()
    code = SHOW.format(root=str(Path(__file__).parents[2]), view=wanted, note=str(note), enough=enough)
    env = {**environment(), "TERM": term}
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "pass_fds": (enough,)}
    p = subprocess.Popen([sys.executable, "-c", code], **ends, env=env)
    os.close(theirs)
    written = b""
    try:
        chunk = b"\0"
        while chunk:
            if written.count(b"title") >= drawings:
                os.write(say_enough, b".")
            chunk = os.read(ours, 65536)
            written += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    for fd in (ours, enough, say_enough):
        os.close(fd)
    assert p.wait(30) == 0
    return note.read_text().strip(), written


def test_live_on_a_terminal_and_the_terminal_is_given_back(tmp_path: Path) -> None:
    kind, written = on_a_terminal(tmp_path, "auto", drawings=1)
    assert kind == "LiveScreen"
    assert written.count(b"\x1b[?1049h") == written.count(b"\x1b[?1049l") == 1
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")


def test_nothing_is_cleared_between_two_drawings(tmp_path: Path) -> None:
    _, written = on_a_terminal(tmp_path, "live", drawings=3)
    inside = written.split(b"\x1b[?1049h", 1)[1].split(b"\x1b[?1049l", 1)[0]
    assert inside.count(b"title") >= 3
    assert not re.search(rb"\x1b\[[0-9]*[JK]", inside)  # clearing, then writing, is what flickers


@pytest.mark.parametrize(("wanted", "term"), [("plain", "xterm"), ("auto", "dumb"), ("live", "dumb")])
def test_plain_when_asked_for_or_when_the_terminal_cannot(tmp_path: Path, wanted: str, term: str) -> None:
    assert on_a_terminal(tmp_path, wanted, term)[0] == "PlainScreen"


# The pen


@pytest.mark.timeout(60)  # whoever waited for a reader would wait for ever
def test_a_pipe_that_nobody_reads_holds_up_nobody() -> None:
    read, write = os.pipe()
    stream = open(write, "w", encoding="utf-8")  # noqa: SIM115
    pen = Pen()
    for n in range(HELD_LINES + 5000):
        pen.write(stream, f"line {n} " + "x" * 40)
    pen.close(wait_s=0.05)
    text = b""
    while not text.endswith(f"line {HELD_LINES + 4999} {'x' * 40}\n".encode()):
        text += os.read(read, 1 << 20)
    assert b"lines were left out here" in text
    os.close(read)
    stream.close()


def test_a_reader_that_went_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as stream:
        pen = Pen()
        pen.write(stream, "nobody hears this")
        pen.write(stream, "nor this")
        pen.close()
