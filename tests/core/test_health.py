"""Who is hung: named by what all ranks show at once, never where slowness is legal, never when all are equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onward.core.facts import Progress
from onward.core.health import limit_s, own_idle_s, suspect

LIMIT = 2.0


def waits(s: float, launched: int = 5) -> Progress:
    return Progress(step=3, launched=launched, pending_s=s, idle_s=s)


def works(idle: float, launched: int = 4, beat: float = 0.0) -> Progress:
    """In user code: no collective under way."""
    return Progress(step=3, launched=launched, idle_s=idle, beat_s=beat)


# ------------------------------------------------------------------------------------------------ the limit


def test_until_three_steps_are_seen_the_limit_is_generous() -> None:
    assert limit_s([], 0.7, 120.0) == 120.0
    assert limit_s([0.1, 0.1], 0.7, 120.0) == 120.0


def test_the_limit_is_a_few_step_times_but_never_below_the_floor() -> None:
    assert limit_s([0.01] * 5, 0.7, 120.0) == 0.7
    assert limit_s([1.0] * 5, 0.7, 120.0) == 3.0


def test_one_slow_step_that_was_legal_raises_the_limit() -> None:
    assert limit_s([0.1, 0.1, 0.1, 10.0], 0.7, 120.0) == 15.0


@given(st.lists(st.floats(0.001, 100.0), min_size=3, max_size=64), st.floats(0.1, 10.0))
def test_a_step_as_long_as_any_seen_is_never_over_the_limit(times: list[float], floor: float) -> None:
    limit = limit_s(times, floor, 120.0)
    assert limit >= floor
    assert limit > max(times)


def test_where_the_agents_own_ticks_are_late_there_is_more_patience() -> None:
    assert limit_s([0.01] * 5, 0.7, 120.0, late_s=0.5) == 0.7 + 0.5
    assert limit_s([], 0.7, 120.0, late_s=0.5) == 120.0


def test_who_stood_in_the_queue_for_a_core_did_not_idle() -> None:
    assert own_idle_s(3.0, queued_s=0.0) == 3.0
    assert own_idle_s(3.0, queued_s=2.0) == 1.0
    starved = works(own_idle_s(3.0, queued_s=2.5))
    assert suspect({0: waits(3.0), 1: starved, 2: waits(3.0)}, LIMIT) is None


def test_one_in_an_endless_loop_on_a_busy_machine_is_found_in_the_end() -> None:
    looping = works(own_idle_s(4 * LIMIT, queued_s=4 * LIMIT))
    found = suspect({0: waits(4 * LIMIT), 1: looping}, LIMIT)
    assert found is not None
    assert found.certain
    assert found.ranks == (1,)


# ------------------------------------------------------------------------------------------------ the guilty


def test_the_rank_that_never_entered_the_collective_is_named() -> None:
    found = suspect({0: waits(3.0), 1: works(3.2), 2: waits(3.0)}, LIMIT)
    assert found is not None
    assert found.ranks == (1,)
    assert found.certain
    assert "rank 0, 2 waited 3.00 s in collective 5" in found.why
    assert "rank 1 entered only 4" in found.why


def test_two_that_stay_away_are_both_named() -> None:
    found = suspect({0: waits(3.0), 1: works(3.2), 2: works(3.1)}, LIMIT)
    assert found is not None
    assert found.ranks == (1, 2)


def test_suspicion_comes_before_certainty_so_that_stacks_can_be_taken() -> None:
    found = suspect({0: waits(1.2), 1: works(1.2)}, LIMIT)
    assert found is not None
    assert found.ranks == (1,)
    assert not found.certain


def test_a_short_wait_is_nobodys_fault() -> None:
    assert suspect({0: waits(0.9), 1: works(5.0)}, LIMIT) is None


def test_one_that_has_just_moved_is_late_not_hung() -> None:
    assert suspect({0: waits(60.0), 1: works(0.1)}, LIMIT) is None


def test_a_stopped_process_is_told_from_a_busy_one() -> None:
    silent = suspect({0: waits(3.0), 1: works(3.0, beat=2.9)}, LIMIT)
    busy = suspect({0: waits(3.0), 1: works(3.0, beat=0.05)}, LIMIT)
    assert silent is not None
    assert busy is not None
    assert "silent for 2.9 s" in silent.why
    assert "its process answers" in busy.why


def test_one_silent_inside_the_collective_is_named() -> None:
    found = suspect({0: waits(3.0), 1: frozen(5), 2: waits(3.0)}, LIMIT)
    assert found is not None
    assert found.ranks == (1,)
    assert "no life" in found.why


def frozen(launched: int, s: float = 3.0) -> Progress:
    """Stopped inside a collective."""
    return Progress(step=3, launched=launched, pending_s=s, idle_s=s, beat_s=s)


def test_who_waits_for_the_stopped_one_in_an_older_collective_is_not_blamed_with_it() -> None:
    """Rank 0 stopped inside collective 4. Ranks 1 and 2 had all they needed of it and went on to 5, rank 3 had not."""
    found = suspect({0: frozen(4), 1: waits(3.0), 2: waits(3.0), 3: waits(3.0, launched=4)}, LIMIT)
    assert found is not None
    assert found.certain
    assert found.ranks == (0,)
    assert "rank 0 entered only 4" in found.why
    assert "silent for 3.0 s" in found.why


def test_the_stopped_one_may_itself_be_ahead_of_those_it_holds_up() -> None:
    found = suspect({0: frozen(5), 1: waits(3.0), 2: waits(3.0, launched=4)}, LIMIT)
    assert found is not None
    assert found.ranks == (0,)


def test_one_in_user_code_is_blamed_and_not_those_who_wait_for_it_in_an_older_collective() -> None:
    found = suspect({0: works(3.0, launched=4), 1: waits(3.0), 2: waits(3.0, launched=4)}, LIMIT)
    assert found is not None
    assert found.ranks == (0,)


def test_one_that_waits_for_somebody_further_behind_is_not_blamed_while_that_one_is_given_time() -> None:
    """After a broadcast ranks can be several apart; a loop on a busy machine stands in the queue for a core."""
    spinning = works(0.4, launched=3)
    assert suspect({0: waits(1.2, launched=4), 1: spinning, 2: waits(1.2, launched=5)}, 1.0) is None
    found = suspect({0: waits(4.0, launched=4), 1: works(1.1, launched=3), 2: waits(4.0, launched=5)}, 1.0)
    assert found is not None
    assert (found.ranks, found.certain) == ((1,), True)


def test_one_in_another_collective_than_all_others_is_blamed_though_it_waits() -> None:
    found = suspect({0: waits(3.0), 1: waits(3.0, launched=4), 2: waits(3.0)}, LIMIT)
    assert found is not None
    assert found.ranks == (1,)


def test_silence_of_all_is_the_readers_absence_and_no_evidence() -> None:
    found = suspect({0: frozen(5), 1: frozen(5), 2: frozen(5)}, LIMIT)
    assert found is not None
    assert found.ranks == ()


def test_one_that_is_not_at_the_gate_where_the_others_wait() -> None:
    gate = Progress(step=3, launched=5, idle_s=3.0, gate=True)
    found = suspect({0: gate, 1: works(3.0, launched=5), 2: gate}, LIMIT)
    assert found is not None
    assert found.ranks == (1,)
    assert "at the gate" in found.why


def test_a_stall_of_all_accuses_nobody() -> None:
    found = suspect({0: waits(3.0), 1: waits(3.1), 2: waits(2.9)}, LIMIT)
    assert found is not None
    assert found.ranks == ()
    assert found.certain


# ------------------------------------------------------------------------------------------------ the innocent


def test_in_a_section_slowness_is_legal() -> None:
    evaluating = Progress(step=3, launched=4, idle_s=100.0, section=True)
    assert suspect({0: waits(100.0), 1: evaluating}, LIMIT) is None


def test_nobody_waits_nobody_is_asked() -> None:
    assert suspect({0: works(100.0), 1: works(100.0)}, LIMIT) is None


def test_no_ranks() -> None:
    assert suspect({}, LIMIT) is None


numbers = st.floats(0.0, 1000.0)
progress = st.builds(
    Progress,
    step=st.integers(-1, 100),
    launched=st.integers(0, 5),
    pending_s=st.just(0.0) | numbers,
    beat_s=numbers,
    idle_s=numbers,
    section=st.booleans(),
    step_s=numbers,
    gate=st.booleans(),
)


@given(progress, st.integers(1, 8), st.floats(0.1, 100.0))
def test_a_uniform_run_is_never_accused(p: Progress, n: int, limit: float) -> None:
    found = suspect(dict.fromkeys(range(n), p), limit)
    assert found is None or found.ranks == ()


@given(st.dictionaries(st.integers(0, 7), progress, max_size=8), st.floats(0.1, 100.0))
def test_any_picture_gets_an_answer_and_the_foremost_are_never_named_for_being_behind(
    ranks: dict[int, Progress], limit: float
) -> None:
    found = suspect(ranks, limit)
    if found is None:
        return
    assert found.why
    assert set(found.ranks) < set(ranks) or not found.ranks, "somebody must be left who was held up"
    for r in found.ranks:
        assert ranks[r].idle_s >= limit / 2 or ranks[r].beat_s > limit, "who has just moved is not accused"


@given(st.dictionaries(st.integers(0, 7), progress, min_size=1, max_size=8), st.floats(0.1, 100.0), st.integers(0, 7))
def test_one_rank_in_a_section_silences_the_question(
    ranks: dict[int, Progress], limit: float, who: int
) -> None:
    busy = Progress(step=3, launched=1, idle_s=1000.0, section=True)
    assert suspect({**ranks, who: busy}, limit) is None
