"""Dump, reload, stop and resume: what survives is kept, everybody begins from it, and every wait ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advancing import Driven

from onward.core.agreement import Part
from onward.core.checkpoints import Grant, SavedFile, SavePart, choose_start, publishable
from onward.core.facts import FaultReport, Progress, Scope, Stage
from onward.core.job import Job, Phase
from onward.core.membership import Outlook
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.core.saving import savers
from onward.core.succession import resumed

DUMP, RELOAD = parse_policies("retry,dump"), parse_policies("retry")


def dumping(world: int = 3) -> Driven:
    """Rank 1 was killed; the others stand at the fence with step 20."""
    d = Driven(world, policies=DUMP).running(20).die(1)
    return d.pause(*(r for r in range(world) if r != 1))


def ready(d: Driven, *loadable: tuple[int, ...], partly: tuple[int, ...] = ()) -> Driven:
    """All ranks have been started again and stand before their first step."""
    d.each(stage=Stage.SETUP).go()
    d.each(stage=Stage.FORMED, generation=d.job.generation).go()
    for r in range(d.job.world_size):
        steps = loadable[r] if len(loadable) > 1 else loadable[0]
        d.set(r, stage=Stage.READY, generation=d.job.generation, loadable=steps, partly=partly)
    return d.go()


# ------------------------------------------------------------------------------------------------ beginning


def test_nobody_begins_before_all_are_ready() -> None:
    d = Driven()
    d.each(stage=Stage.SETUP).go()
    d.each(stage=Stage.FORMED, generation=1).go()
    d.each(0, 1, stage=Stage.READY, generation=1).go()
    assert not d.job.begun
    d.each(2, stage=Stage.READY, generation=1).go()
    assert (d.job.phase, d.job.generation, d.job.begun) == (Phase.RUNNING, 1, True)


def test_the_newest_step_that_all_can_load_is_loaded() -> None:
    d = ready(Driven(), (10, 20), (10, 20, 30), (20, 10))
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 2)
    assert d.job.agreement is not None
    assert d.job.agreement.step == 20
    assert set(d.job.agreement.parts.values()) == {Part.LOAD}
    d.form().commit(21)
    assert d.job.phase is Phase.RUNNING


def test_who_has_only_its_local_state_is_given_the_rest() -> None:
    d = Driven()
    d.each(stage=Stage.SETUP).go()
    d.each(stage=Stage.FORMED, generation=1).go()
    d.each(0, 1, stage=Stage.READY, generation=1, loadable=(20,))
    d.each(2, stage=Stage.READY, generation=1, partly=(20,)).go()
    assert d.job.agreement is not None
    assert d.job.agreement.parts == {0: Part.LOAD, 1: Part.LOAD, 2: Part.RECEIVE}
    assert d.job.agreement.sources == (0, 1)


def test_a_fault_while_loading_starts_all_again_and_loads_again() -> None:
    d = ready(Driven(), (20,)).die(2)
    assert (d.job.phase, d.job.attempt, d.job.begun) == (Phase.STARTING, 1, False)
    assert "still being loaded" in d.story.why[-1]
    d.facts.clear()
    assert ready(d, (20,)).job.phase is Phase.FORMING


def test_a_load_takes_as_long_as_a_replacement_may() -> None:
    d = ready(Driven(form_s=15.0, mend_s=600.0), (20,)).go(300.0)
    assert (d.job.phase, d.job.attempt) == (Phase.FORMING, 0)
    d.go(400.0)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)


@pytest.mark.parametrize(
    ("loadable", "partly", "step"),
    [
        ({0: (), 1: ()}, {}, -1),
        ({0: (10, 20), 1: (10,)}, {}, 10),
        ({0: (10, 20), 1: ()}, {}, -1),
        ({0: (10, 20), 1: (10,)}, {1: (20,)}, 20),
        ({0: (), 1: ()}, {0: (20,), 1: (20,)}, -1),
    ],
)
def test_choosing_where_to_begin(loadable, partly, step) -> None:
    chosen, why = choose_start(loadable, partly)
    assert chosen == step
    assert (f"checkpoint of step {step}" if step >= 0 else "from the beginning") in why


# ------------------------------------------------------------------------------------------------ dump


def test_a_dump_counts_the_dead_by_what_they_had_published() -> None:
    d = dumping()
    assert (d.job.phase, d.job.ending) == (Phase.SAVING, "dump")
    assert d.job.incarnations == (1, 1, 1), "nobody is replaced in place"
    assert d.job.agreement is not None
    assert d.job.agreement.step == 20
    assert savers(d.job, d.facts) == {0: 0}
    d.each(disk=(20,)).go()
    assert (d.job.phase, d.job.attempt, d.job.ending) == (Phase.STARTING, 1, "")
    assert d.story.policy == "dump"
    ready(d, (10, 20)).form().commit(21)
    assert [i.policy for i in d.closed] == ["dump"]


def test_rank_0_may_be_the_dead_one() -> None:
    d = Driven(policies=DUMP).running(20).die(0).pause(1, 2)
    assert d.job.phase is Phase.SAVING
    assert savers(d.job, d.facts) == {0: 1}


def test_without_its_local_state_the_dead_rank_cannot_be_saved() -> None:
    d = Driven(policies=DUMP).running(20)
    d.each(1, local_steps=())
    d.die(1).pause(0, 2)
    assert (d.job.phase, d.job.attempt, d.story.policy) == (Phase.STARTING, 1, "exit")
    assert "local state of rank 1" in d.story.why[-1]


def test_another_saver_is_taken_when_the_first_dies() -> None:
    d = dumping().die(0)
    assert d.job.phase is Phase.SAVING
    assert savers(d.job, d.facts) == {0: 2}
    d.die(2)
    assert (d.job.phase, d.story.policy) == (Phase.STARTING, "exit")


def test_a_disk_that_is_full_leads_to_the_next_rung() -> None:
    d = dumping().each(save_error="No space left on device").go()
    assert (d.job.phase, d.job.attempt, d.story.policy) == (Phase.STARTING, 1, "exit")
    assert "No space left" in d.story.why[-1]


def test_a_save_that_never_ends_leads_to_the_next_rung() -> None:
    d = dumping()
    d.go(d.job.limits.save_s + 1)
    assert (d.job.phase, d.story.policy) == (Phase.STARTING, "exit")


def test_one_that_does_not_come_to_the_fence_counts_as_dead() -> None:
    d = Driven(policies=DUMP, pause_s=5.0).running(20).die(1).pause(0)
    assert d.job.phase is Phase.PAUSING
    d.go(6.0)
    assert d.job.phase is Phase.SAVING
    assert savers(d.job, d.facts) == {0: 0}


def test_a_hung_rank_is_not_waited_for_and_not_counted_twice() -> None:
    d = Driven(policies=DUMP).running(20)
    d.each(1, fault=FaultReport("hang", 1, 1, step=20, text="waited", at=1.0)).go().pause(0, 2)
    assert d.job.phase is Phase.SAVING
    for at in (2.0, 3.0, 4.0):
        d.each(1, fault=FaultReport("hang", 1, 1, step=20, text="waited", at=at)).go()
    assert d.job.phase is Phase.SAVING


def test_a_new_manager_goes_on_saving() -> None:
    d = dumping()
    job = resumed(replace(d.job, term=2), 5.0)
    assert job.deadline == 5.0 + job.limits.save_s
    for r in range(3):
        d.set(r, disk=(20,))
    assert advance(job, d.facts, 6.0).job.phase is Phase.STARTING


def test_the_same_failure_three_times_is_saved_and_then_fails() -> None:
    d = Driven(policies=DUMP).running(20)
    for _ in range(3):
        d.die(1).pause(0, 2).each(disk=(20,)).go()
        if d.job.phase is Phase.FAILED:
            break
        d.facts.clear()
        ready(d, (20,)).form()
        d.each(step=20, clean=True, local_steps=(19, 20), progress=Progress(step=20))
        d.each(stage=Stage.TRAINING, scope=Scope.STEP).go()
    assert d.job.phase is Phase.FAILED
    assert "3 times with no progress" in d.job.reason


# ------------------------------------------------------------------------------------------------ reload


def test_reload_keeps_the_step_in_memory() -> None:
    d = Driven(policies=RELOAD).running(20).die(1).pause(0, 2)
    assert (d.job.phase, d.job.ending) == (Phase.SAVING, "reload")
    d.each(kept=(20,)).go()
    assert d.job.phase is Phase.SAVING
    d.each(memory=(20,)).go()
    assert (d.job.phase, d.story.policy) == (Phase.STARTING, "reload")


@pytest.mark.parametrize(("policies", "ending"), [("retry,recover-in-place,dump", "dump"), ("retry", "reload")])
def test_what_nobody_can_tell_a_replacement_costs_no_step(policies: str, ending: str) -> None:
    """It was killed between two steps, and needs what only it had been told there. The others hold the state."""
    d = Driven(policies=parse_policies(f"{policies},recover-in-place")).running(20).die(1).pause(0, 2).park(1, 20)
    assert d.job.phase is Phase.FORMING
    untold = FaultReport("untold", 1, 2, step=20, text="nobody else knows", at=7.0)
    d.each(1, stage=Stage.TRAINING, step=20, fault=untold).go()
    assert (d.job.phase, d.job.ending) == (Phase.PAUSING, ending)
    assert "rank 1 killed (SIGKILL); nobody else knows" in d.why[-1]
    d.pause().go()
    assert (d.job.phase, d.job.agreement and d.job.agreement.step) == (Phase.SAVING, 20)


def test_exit_alone_keeps_nothing() -> None:
    d = Driven(policies=parse_policies("exit")).running(20).die(1)
    assert (d.job.phase, d.story.policy) == (Phase.STARTING, "exit")


def test_starting_again_says_from_where() -> None:
    d = Driven(policies=parse_policies("exit")).running(20).die(1)
    assert d.story.why[-1].endswith("restarting all 3 ranks")
    ready(d, ())
    assert d.story.why[-1] == "starting from the beginning"
    d = Driven(policies=parse_policies("exit")).running(20).die(1)
    ready(d, (10,)).form().commit(11)
    assert (d.story.mended, d.story.why[-1]) == (True, "resuming from the checkpoint of step 10")


# ------------------------------------------------------------------------------------------------ stop


def stop(d: Driven) -> Job:
    d.job = advance(d.job, d.facts, d.now, Outlook(stopping=True)).job
    return d.job


def test_a_job_that_is_stopped_saves_first() -> None:
    d = Driven().running(20)
    assert (stop(d).phase, d.job.ending) == (Phase.PAUSING, "stop")
    d.pause()
    assert d.job.phase is Phase.SAVING
    d.each(disk=(20,)).go()
    assert d.job.phase is Phase.STOPPED
    assert d.job.attempt == 0
    assert "step 20 is saved" in d.job.reason


def test_what_breaks_because_all_are_told_to_end_is_no_incident() -> None:
    """A rank whose groups are aborted may report that as an error, and one that dies then was to end anyway."""
    d = Driven().running(20)
    stop(d)
    echo = FaultReport("exception", 0, 1, step=20, text="RuntimeError: closed", retryable="communication", at=5.0)
    d.set(0, fault=echo)
    d.go().die(1, -15)
    bug = FaultReport("exception", 2, 1, step=20, text="ValueError", at=6.0)
    d.set(2, fault=bug)
    d.go()
    assert (d.job.incident, d.job.incidents, d.closed) == (None, 0, [])
    d.pause(0)
    assert d.job.phase is Phase.SAVING, "who is dead, or of no use any more, is not waited for"
    d.each(0, disk=(20,)).go()
    assert (d.job.phase, d.job.incidents) == (Phase.STOPPED, 0)
    assert "step 20 is saved" in d.job.reason


@pytest.mark.parametrize("policies", ["retry,recover-in-place", "exit"])
def test_without_dump_it_just_stops(policies: str) -> None:
    assert stop(Driven(policies=parse_policies(policies)).running(20)).phase is Phase.STOPPED


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    assert stop(Driven()).phase is Phase.STOPPED


def test_a_stop_during_a_dump_ends_when_it_is_written() -> None:
    d = dumping()
    assert stop(d).phase is Phase.SAVING
    d.each(disk=(20,)).go()
    assert d.job.phase is Phase.STOPPED


def test_a_stop_that_cannot_be_saved_is_still_a_stop() -> None:
    d = Driven().running(20)
    stop(d)
    d.pause().each(save_error="No space left on device").go()
    assert d.job.phase is Phase.STOPPED
    assert "nothing was saved" in d.job.reason


# ------------------------------------------------------------------------------------------------ publishing


def part(step: int, generation: int, name: str, *ranks: int, shared: bool = False) -> SavePart:
    return SavePart(step, generation, shared, (SavedFile(name, 1, "x"),), ranks)


def test_only_what_all_nodes_have_written_in_this_generation_is_published() -> None:
    one, other = part(20, 3, "a", 0, 1, shared=True), part(20, 3, "b", 2, 3)
    assert publishable({0: [one]}, 3, range(4)) is None, "a node is missing"
    assert publishable({0: [one], 1: [part(20, 2, "b", 2, 3)]}, 3, range(4)) is None, "it wrote in an older generation"
    assert publishable({0: [one], 1: [other]}, 4, range(4)) is None, "the generation is over"
    assert publishable({0: [one], 1: [part(30, 3, "b", 2, 3)]}, 3, range(4)) is None, "these are different steps"
    assert publishable({0: [part(20, 3, "a", 0, 1)], 1: [other]}, 3, range(4)) is None, "nobody has the shared state"
    assert publishable({0: [one]}, 3, (0, 1)) is not None, "the job goes on without the others"
    whole = publishable({1: [part(20, 3, "c", 2, 3, 0, 1, shared=True)]}, 3, range(4))
    assert whole is not None, "the local state of a lost node may be kept elsewhere"
    grant = publishable({0: [other], 1: [one]}, 3, range(4))
    assert isinstance(grant, Grant)
    assert (grant.node, grant.step, [f.name for f in grant.files]) == (1, 20, ["a", "b"])
