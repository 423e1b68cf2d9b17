"""Where everybody goes on after a pause: the furthest step that all can reach, and no further."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.agreement import Agreement, Copy, NoAgreement, Part, agree


def holding(rank: int, step: int | None, clean: bool = True, undo: bool = False, local: tuple[int, ...] = ()) -> Copy:
    return Copy(rank, step, clean, undo, local)


def agreed(*copies: Copy) -> Agreement:
    outcome = agree(copies)
    assert isinstance(outcome, Agreement), outcome
    return outcome


def test_everybody_at_one_step_keeps_it() -> None:
    a = agreed(holding(0, 7), holding(1, 7))
    assert a.step == 7
    assert a.parts == {0: Part.KEEP, 1: Part.KEEP}
    assert a.sources == (0, 1)
    assert "step 7" in a.why


def test_the_furthest_step_wins_and_the_one_behind_receives_it() -> None:
    a = agreed(holding(0, 8), holding(1, 7, local=(7, 8)), holding(2, 8))
    assert a.step == 8
    assert a.parts == {0: Part.KEEP, 1: Part.RECEIVE, 2: Part.KEEP}
    assert a.sources == (0, 2)
    assert "rank 1" in a.why


def test_what_was_written_before_a_step_ended_in_another_way_than_those_before_is_not_its_end() -> None:
    """A light step is one whose end changes nothing local; who has seen the end of this one knows better."""
    dead = replace(holding(1, None, clean=False, local=(7, 8)), early=(8,))
    assert agreed(replace(holding(0, 8), light=2), dead).step == 8
    assert isinstance(agree([holding(0, 8), dead]), NoAgreement)
    assert agreed(holding(0, 8, undo=True), dead).step == 7
    behind = replace(holding(1, 7, local=(7, 8)), early=(8,))
    assert isinstance(agree([holding(0, 8), behind]), NoAgreement)


def test_a_replacement_receives() -> None:
    a = agreed(holding(0, 8), holding(1, None, clean=False, local=(7, 8)))
    assert a.parts == {0: Part.KEEP, 1: Part.RECEIVE}
    assert a.sources == (0,)


def test_what_cannot_be_sent_is_kept_where_it_is_and_given_by_another() -> None:
    odd = Copy(0, 8, True, False, (8,), withheld="stats.when is a date")
    a = agreed(odd, holding(1, 8), holding(2, None, clean=False, local=(8,)))
    assert (a.parts[0], a.sources) == (Part.KEEP, (1,))
    assert agreed(odd, replace(odd, rank=1)).sources == (0, 1)  # nobody has to be given anything
    outcome = agree([odd, holding(1, None, clean=False, local=(8,))])
    assert isinstance(outcome, NoAgreement)
    assert outcome.why == "step 8: nobody can be given the state, stats.when is a date"


def test_one_whose_local_state_was_not_safe_holds_all_back_to_where_they_can_undo() -> None:
    a = agreed(holding(0, 8, undo=True), holding(1, 8, undo=True), holding(2, None, clean=False, local=(6, 7)))
    assert a.step == 7
    assert a.parts == {0: Part.UNDO, 1: Part.UNDO, 2: Part.RECEIVE}
    assert a.sources == (0, 1)
    assert "the unfinished step of ranks 0, 1 is taken back" in a.why


def test_undoing_is_not_done_when_the_further_step_can_be_reached() -> None:
    a = agreed(holding(0, 8, undo=True), holding(1, 7, local=(8,)))
    assert (a.step, a.parts) == (8, {0: Part.KEEP, 1: Part.RECEIVE})


def test_steps_stay_light_when_all_who_have_run_steps_know_one_shape() -> None:
    light = Copy(0, 8, True, False, (8,), light=2), Copy(1, 7, False, False, (7, 8), light=2)
    assert agreed(*light, holding(2, None, clean=False, local=(8,))).light == 2


@pytest.mark.parametrize("other", [0, 3])
def test_steps_are_careful_again_when_the_shapes_differ(other: int) -> None:
    assert agreed(Copy(0, 8, True, False, (8,), light=2), Copy(1, 8, True, False, (8,), light=other)).light == 0


def test_a_damaged_copy_is_no_source_but_can_receive() -> None:
    a = agreed(holding(0, 8, clean=False, local=(8,)), holding(1, 8))
    assert a.parts == {0: Part.RECEIVE, 1: Part.KEEP}
    assert a.sources == (1,)


def test_one_torn_in_the_middle_of_an_update_is_no_copy_of_either_step() -> None:
    outcome = agree([holding(0, 8, clean=False, undo=False, local=(7, 8))])
    assert isinstance(outcome, NoAgreement)


def test_no_copy_at_all() -> None:
    outcome = agree([holding(0, None, clean=False, local=(8,)), holding(1, None, clean=False, local=(8,))])
    assert isinstance(outcome, NoAgreement)
    assert "no complete copy" in outcome.why


def test_missing_local_state_is_named_for_every_step_that_was_tried() -> None:
    copies = [holding(0, 9), holding(1, 8), holding(2, None, clean=False, local=(3,))]
    outcome = agree(copies)
    assert isinstance(outcome, NoAgreement)
    assert "step 9" in outcome.why
    assert "step 8" in outcome.why
    assert "ranks 1, 2" in outcome.why


def test_nobody_undoes_below_the_first_step() -> None:
    assert agreed(holding(0, 0, undo=True), holding(1, 0)).step == 0
    assert isinstance(agree([holding(0, 0, undo=True), holding(1, None, clean=False)]), NoAgreement)


def test_nobody_there_is_no_agreement() -> None:
    assert isinstance(agree([]), NoAgreement)


# ------------------------------------------------------------------------------------------------ for any copies

steps = st.integers(0, 6)
anything = st.lists(
    st.tuples(st.none() | steps, st.booleans(), st.booleans(), st.lists(steps, max_size=3).map(tuple)),
    min_size=1,
    max_size=5,
).map(lambda rows: [Copy(rank, *row) for rank, row in enumerate(rows)])


def ways(c: Copy, step: int) -> set[Part]:
    """Everything that would bring this rank to `step`, by the meaning of the words."""
    found = set()
    if c.clean and c.step == step:
        found.add(Part.KEEP)
    if c.undo and c.step is not None and c.step == step + 1:
        found.add(Part.UNDO)
    if step in c.local_steps:
        found.add(Part.RECEIVE)
    return found


def reachable(copies: list[Copy], step: int) -> bool:
    possible = [ways(c, step) for c in copies]
    return all(possible) and any(w - {Part.RECEIVE} for w in possible)


@given(anything)
def test_the_agreed_step_is_reachable_by_all_and_no_higher_one_is(copies: list[Copy]) -> None:
    best = max((s for s in range(8) if reachable(copies, s)), default=None)
    outcome = agree(copies)
    assert outcome.why
    if best is None:
        assert isinstance(outcome, NoAgreement)
        return
    assert isinstance(outcome, Agreement)
    assert outcome.step == best
    assert set(outcome.parts) == {c.rank for c in copies}
    for c in copies:
        assert outcome.parts[c.rank] in ways(c, best)
    givers = {r for r, part in outcome.parts.items() if part is not Part.RECEIVE}
    assert set(outcome.sources) == givers
    assert givers


@given(anything, st.randoms(use_true_random=False))
def test_the_order_of_the_reports_changes_nothing(copies: list[Copy], random: object) -> None:
    shuffled = list(copies)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = agree(copies), agree(shuffled)
    assert type(one) is type(other)
    if isinstance(one, Agreement) and isinstance(other, Agreement):
        assert (one.step, one.parts, set(one.sources)) == (other.step, other.parts, set(other.sources))


@pytest.mark.parametrize("part", Part)
def test_parts_travel_as_the_words_of_the_wire(part: Part) -> None:
    assert part.value in ("keep", "undo", "receive", "load")
