"""Published faults in a manager: what each level does, whom it bars, and that none of it is lost with the manager."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driven import Driven

from onward.core.intake import Notice
from onward.core.job import Phase
from onward.core.membership import Member
from onward.manager.logic import ManagerLogic
from onward.wire.messages import FaultRequest, Orders


def test_retry_redoes_the_step_once_and_ends_no_process() -> None:
    d = Driven()
    d.report("retry", rank="3")
    assert d.phase is Phase.PAUSING
    assert d.incidents[-1] == "retry"
    d.recover()
    assert d.phase is Phase.RUNNING
    d.pass_time(2.0)
    assert (d.phase, d.incarnations) == (Phase.RUNNING, (1, 1, 1, 1))
    assert d.logic.job is not None
    assert d.logic.job.incidents == 1, "once"


def test_restart_replaces_the_process_of_the_named_rank() -> None:
    d = Driven()
    d.report("restart", node="1", device="0")
    assert d.incarnations == (1, 1, 2, 1)
    d.recover()
    d.pass_time(2.0)
    assert (d.phase, d.incarnations) == (Phase.RUNNING, (1, 1, 2, 1)), "not again, now that it has another number"


def test_restart_of_a_node_is_one_of_all_its_ranks() -> None:
    d = Driven()
    d.report("restart", node="h1")
    assert d.incarnations == (1, 1, 2, 2)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.PAUSING])
def test_what_is_done_once_waits_until_there_are_steps(phase: Phase) -> None:
    d = Driven()
    assert d.logic.job is not None
    d.logic.job = replace(d.logic.job, phase=phase, begun=phase is not Phase.STARTING)
    generation = d.logic.job.generation
    answer = d.report("retry", rank="0")
    assert d.logic.job.generation <= generation + 1
    assert not answer.faults[0].done
    assert d.logic.job.attempt == 0
    assert [c.kind for c in d.orders["a0"].conditions] == ["retry"], "shown for as long as it waits"


def test_separate_gives_the_place_to_another_and_the_agent_gets_none_again() -> None:
    d = Driven(standby=2)
    d.report("separate", node="1", text="the fan is broken")
    assert d.incidents[-1] == "recover"
    assert d.places == ["a0", "s0"]
    assert d.orders["a1"].node == -1
    d.recover()
    d.pass_time(1.0)
    assert d.phase is Phase.RUNNING
    d.report("separate", "c2", node="1")
    assert d.places == ["a0", "s1"], "not the one that was separated first"
    d.recover()
    d.pass_time(1.0)
    d.report("separate", "c3", node="1")
    assert d.places == ["a0", "-"], "nobody is left"
    d.ask(op="clear", code="c1")
    d.pass_time(1.0)
    assert d.places == ["a0", "a1"], "until the fault is cleared"


def test_a_separated_machine_is_not_better_when_its_agent_is_started_anew() -> None:
    d = Driven(standby=0)
    d.report("separate", node="1")
    d.agents.append(Member(id="new", host="h1", address="10.0.0.1"))
    d.pass_time(1.0)
    assert d.places == ["a0", "-"]
    d.agents.append(Member(id="other", host="h9", address="10.0.0.9"))
    d.pass_time(1.0)
    assert d.places == ["a0", "other"]


def test_pre_separate_lets_it_go_on_but_gives_it_no_place() -> None:
    d = Driven()
    d.report("pre-separate", node="1")
    d.report("pre-separate", node="s0")
    d.pass_time(1.0)
    assert (d.phase, d.places) == (Phase.RUNNING, ["a0", "a1"])
    d.report("separate", "c2", node="0")
    assert d.places == ["-", "a1"]


def test_sub_health_is_in_the_outlook_and_on_every_screen() -> None:
    d = Driven(standby=2)
    d.report("sub-health", rank="2", text="ECC errors")
    d.report("sub-health", node="s0")
    d.pass_time(1.0)
    outlook = d.logic._outlook(d.now)
    assert list(outlook.sub_health) == [1]
    assert "ECC errors on rank 2 on node 1" in outlook.sub_health[1]
    assert d.phase is Phase.RUNNING
    assert [c.kind for c in d.orders["s1"].conditions] == ["sub-health", "sub-health"]
    assert [m.id for m in outlook.here] == ["a0", "s1", "a1", "s0"], "the healthy come first"


def test_a_fault_ends_when_its_time_is_up() -> None:
    d = Driven()
    d.report("sub-health", node="1", lasts="60")
    d.pass_time(50.0)
    assert d.orders["a0"].conditions
    d.pass_time(11.0)
    assert not d.orders["a0"].conditions
    assert not d.ask(op="list").faults


def test_not_handle_and_silenced_codes_are_shown_and_nothing_else() -> None:
    d = Driven(silenced=(("c2", 0.0), ("c3", 5.0)))
    d.report("not-handle", node="1")
    d.report("separate", "c2", node="1")
    d.report("restart", "c3", rank="1")
    d.pass_time(4.0)
    assert (d.phase, d.places, d.incarnations) == (Phase.RUNNING, ["a0", "a1"], (1, 1, 1, 1))
    assert {c.kind for c in d.orders["a0"].conditions} == {"not-handle"}
    d.pass_time(2.0)
    assert d.incarnations == (1, 2, 1, 1), "it was silenced for five seconds, in the hope that it passes"
    assert d.places == ["a0", "a1"]


def test_too_often_isolates_the_node() -> None:
    d = Driven(times=3, window_s=3600.0)
    for _ in range(2):
        d.report("retry", rank="3")
        d.recover()
        d.pass_time(60.0)
    assert d.places == ["a0", "a1"]
    answer = d.report("retry", rank="2")
    assert "isolated: c1 came 3 times within 1 h" in answer.said[-1]
    assert d.places == ["a0", "s0"]


def test_faults_and_their_count_survive_the_manager_and_its_journal() -> None:
    d = Driven(times=3)
    d.report("pre-separate", node="s0", lasts="2h")
    for _ in range(2):
        d.report("retry", "c9", rank="3")
        d.recover()
    d.replace_manager()
    assert [f.code for f in d.ask(op="list").faults] == ["c1", "c9"]
    d.pass_time(1.0)
    assert d.incarnations == (1, 1, 1, 1), "what was done is not done again"
    d.report("retry", "c9", rank="3")
    assert d.places == ["a0", "-"], "the third time; the one that stands by is barred"
    d.now += 7200.0
    d.pass_time(1.0)
    assert d.places == ["a0", "s0"], "the new manager's clock is another, the time of day is not"


def test_a_fault_of_which_only_one_agent_has_heard_is_not_lost() -> None:
    d = Driven(standby=0)
    old = d.orders["a1"]
    d.report("pre-separate", node="1")
    d.orders["a1"] = replace_job(d.orders["a1"], old.job)
    d.replace_manager()
    assert [f.code for f in d.ask(op="list").faults] == ["c1"]


def replace_job(orders: Orders, job: bytes) -> Orders:
    import msgspec

    return msgspec.structs.replace(orders, job=job)


def test_a_request_that_is_sent_again_is_carried_out_once() -> None:
    d = Driven()
    for _ in range(2):
        answer = d.ask("the same", op="report", level="restart", code="c1", rank="1")
        assert not answer.problems
        d.recover()
    assert d.incarnations == (1, 2, 1, 1)


def test_a_manager_that_is_not_in_office_says_so() -> None:
    logic = ManagerLogic(Driven().settings)
    logic.on_fault_request("a0", FaultRequest(uid="u", notice=Notice(op="list")), 1.0)
    ((agent, answer),) = logic.out
    assert agent == "a0"
    assert "waits for the agents" in answer.problems[0]
