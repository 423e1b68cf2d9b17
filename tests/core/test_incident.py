"""The story of a fault: stages in order, honest times, one root cause."""

from __future__ import annotations

import pytest

from onward.core.facts import FaultReport
from onward.core.incident import Incident, describe

KILLED = FaultReport("signal", 2, 1, step=20, text="SIGKILL", at=-1.0)
ECHO = FaultReport("exception", 0, 1, step=20, text="RuntimeError: closed", retryable="communication", at=5.0)


def opened(at: float = 100.0, faults: tuple[FaultReport, ...] = (KILLED,)) -> Incident:
    return Incident(number=1, faults=faults, step=20, opened_at=at).marked("detect", at)


def test_the_timeline_adds_up_to_the_total() -> None:
    i = opened().marked("pause", 100.1).marked("mend", 100.3).marked("form", 100.35).closed(100.5)
    assert [stage for stage, _ in i.timeline_ms()] == ["detect", "pause", "mend", "form", "resume"]
    assert [round(ms) for _, ms in i.timeline_ms()] == [0, 100, 200, 50, 150]
    assert i.total_ms == pytest.approx(500.0)
    assert sum(ms for _, ms in i.timeline_ms()) == pytest.approx(i.total_ms)


def test_a_stage_gone_through_twice_keeps_its_last_end_and_no_time_is_negative() -> None:
    i = opened().marked("mend", 100.2).marked("form", 100.3).marked("mend", 101.0).marked("form", 101.5).closed(102.0)
    times = i.timeline_ms()
    assert [stage for stage, _ in times] == ["detect", "mend", "form", "resume"]
    assert all(ms >= 0 for _, ms in times)
    assert sum(ms for _, ms in times) == pytest.approx(2000.0)


def test_an_open_incident_ends_where_its_last_stage_did() -> None:
    assert opened().total_ms == 0.0
    assert opened().marked("pause", 100.25).total_ms == pytest.approx(250.0)


def test_faults_are_merged_in_order() -> None:
    second = FaultReport("signal", 3, 1, step=20, text="SIGSEGV", at=-1.0)
    i = opened().merged((second,))
    assert i.faults == (KILLED, second)
    assert i.root_cause is KILLED
    assert i.headline() == "rank 2 killed (SIGKILL), and rank 3 killed (SIGSEGV)"


def test_who_failed_alike_is_named_together_and_of_many_ways_the_first_few() -> None:
    def exited(rank: int, code: int) -> FaultReport:
        return FaultReport("exit", rank, 1, step=20, text=f"exit code {code}")

    alike = tuple(FaultReport("signal", rank, 1, step=20, text="SIGKILL") for rank in (3, 0))
    assert opened().merged(alike).headline() == "rank 2 killed (SIGKILL), and ranks 0, 3 too"
    assert opened().merged((alike[0], exited(3, 1))).headline() == "rank 2 killed (SIGKILL), and rank 3 too"
    many = opened().merged((alike[0], exited(4, 1), exited(6, 1), exited(5, 2), exited(7, 3), exited(8, 4)))
    assert many.headline() == (
        "rank 2 killed (SIGKILL), and rank 3 too, and ranks 4, 6 exited (exit code 1), "
        "and rank 5 exited (exit code 2), and 2 more ranks"
    )


def test_one_that_nothing_cured_is_over_and_not_mended() -> None:
    healed, lost = opened().closed(100.5), opened().given_up(100.5)
    assert (opened().mended, healed.mended, lost.mended) == (False, True, False)
    assert lost.total_ms == healed.total_ms == pytest.approx(500.0)
    assert [stage for stage, _ in lost.timeline_ms()] == ["detect", "end"]


def test_a_broken_connection_reported_first_is_not_the_root_cause() -> None:
    i = opened(faults=(ECHO,)).merged((KILLED,))
    assert i.root_cause is KILLED
    assert i.headline() == "rank 2 killed (SIGKILL)", "an echo is nobody's failure"


def test_when_there_are_only_echoes_the_first_stands_for_all() -> None:
    assert opened(faults=(ECHO,)).root_cause is ECHO


def test_the_same_decision_is_written_down_once() -> None:
    i = opened().decided("retry", "redoing the step").decided("retry", "redoing the step")
    assert i.why == ("redoing the step",)
    further = i.decided("recover-in-place", "replacing rank 2")
    assert further.why == ("redoing the step", "replacing rank 2")
    assert further.policy == "recover-in-place"


def test_a_manager_on_the_same_machine_keeps_the_times() -> None:
    i = opened(100.0).marked("pause", 100.2)
    assert i.rebased(103.0) == i


@pytest.mark.parametrize("now", [5.0, 100000.0])
def test_a_manager_elsewhere_has_another_clock(now: float) -> None:
    """The time while nobody was in charge is not known, so it is not counted; it is never negative or absurd."""
    i = opened(100.0).marked("pause", 100.2).rebased(now)
    assert i.marks[-1] == ("pause", pytest.approx(now))
    assert i.total_ms == pytest.approx(200.0)
    assert i.closed(now + 1.0).total_ms == pytest.approx(1200.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (KILLED, "killed (SIGKILL)"),
        (FaultReport("exit", 0, 1, text="exit code 3"), "exited (exit code 3)"),
        (FaultReport("hang", 0, 1, text="whatever"), "hung"),
        (FaultReport("exception", 0, 1, text="ValueError: x\nmore"), "raised an error (ValueError: x)"),
        (FaultReport("exception", 0, 1, text="ECC", retryable="memory"), "raised a retryable error (ECC)"),
        (FaultReport("exception", 0, 1), "raised an error (no text)"),
    ],
)
def test_a_fault_in_a_few_words(fault: FaultReport, words: str) -> None:
    assert describe(fault) == words


@pytest.mark.parametrize("kind", ["stall", "start", "shape", "something new"])
def test_any_kind_has_words(kind: str) -> None:
    assert describe(FaultReport(kind, 0, 1, text="t"))


@pytest.mark.parametrize("text", ["\n", "", "   ", "\n\nreal text below"])
def test_a_text_without_a_first_line_is_no_trouble(text: str) -> None:
    assert describe(FaultReport("exception", 0, 1, text=text))
