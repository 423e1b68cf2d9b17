"""The agent's bookkeeping: orders of the past are dropped, messages of the dead too, the rest is carried out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.effects import FetchLocal, KillProcess, Say, SendRank, StartProcess
from onward.agent.kvstore import GenerationStore
from onward.agent.logic import AgentLogic
from onward.agent.settings import AgentSettings
from onward.agent.spares import CALM_STEPS
from onward.core.facts import FaultReport, Progress, Stage
from onward.core.membership import Member
from onward.wire.messages import (
    Hello,
    Injected,
    Injection,
    KeptAt,
    Orders,
    RankOrder,
    Recorded,
    Report,
    StoreReply,
    StoreRequest,
    Welcome,
)
from onward.wire.peers import KeepLog, KeepSlot


def agent(spares: str = "none", dying: Collection[int] = (), **more: object) -> AgentLogic:
    member = Member(id="a", peer="here|1", nproc=2)
    settings = AgentSettings(member=member, local_ranks=2, spares=spares, **more)  # type: ignore
    paths = lambda p: (f"/page{p.number}", f"/local{p.rank}")  # noqa: E731
    return AgentLogic(settings, paths, lambda p: (3, 4), is_dying=lambda pid: pid in dying)


def orders(
    want: str = "start", term: int = 1, version: int = 1, generation: int = 0, incarnations: tuple[int, ...] = (1, 1),
    attempt: int = 0, phase: str = "Starting",
) -> Orders:  # fmt: skip
    ranks = [
        RankOrder(rank=r, incarnation=i, generation=generation, want=want)  # type: ignore[arg-type]
        for r, i in enumerate(incarnations)
    ]
    return Orders(
        term=term, version=version, generation=generation, ranks=ranks, attempt=attempt, phase=phase, job=b"record",
        node=0, world_size=2,
    )


def up(a: AgentLogic) -> AgentLogic:
    """Two ranks that have said hello, and run generation 1."""
    a.on_orders(orders())
    for number in (1, 2):
        a.on_started(number, 1000 + number)
        a.on_rank(number, Hello(process=number, pid=1000 + number))
    a.on_orders(orders("run", version=2, generation=1, phase="Running"))
    return a


def started(effects: list) -> list[tuple[int, int]]:
    return [(e.rank, e.incarnation) for e in effects if isinstance(e, StartProcess)]


def sent(effects: list) -> list[tuple[int, object]]:
    return [(e.process, e.message) for e in effects if isinstance(e, SendRank)]


# ------------------------------------------------------------------------------------------------ orders


def test_orders_start_each_rank_once() -> None:
    a = agent()
    assert started(a.on_orders(orders())) == [(0, 1), (1, 1)]
    assert started(a.on_orders(orders())) == [], "the same again changes nothing"
    assert a.facts(0.0).record == b"record", "what must outlive the manager is kept"


@pytest.mark.parametrize(("term", "version"), [(2, 0), (1, 5), (0, 99)])
def test_orders_of_the_past_are_dropped_and_counted(term: int, version: int) -> None:
    a = agent()
    a.on_orders(orders(term=2, version=1))
    assert a.on_orders(orders("stop", term=term, version=version)) == []
    assert a.dropped == 1
    assert a.term == 2


def test_a_new_manager_may_start_its_numbers_again() -> None:
    a = agent()
    a.on_orders(orders(term=1, version=50))
    effects = a.on_orders(orders(term=2, version=1, incarnations=(1, 2)))
    assert a.dropped == 0
    assert [e.process for e in effects if isinstance(e, KillProcess)] == [2]


def test_the_next_incarnation_starts_when_the_kernel_says_that_the_last_is_gone() -> None:
    a = up(agent())
    effects = a.on_orders(orders("pause", version=3, generation=2, incarnations=(1, 2)))
    assert [e.process for e in effects if isinstance(e, KillProcess)] == [2]
    assert started(effects) == []
    again = a.on_orders(orders("pause", version=4, generation=2, incarnations=(1, 2)))
    assert not any(isinstance(e, KillProcess | StartProcess) for e in again)
    assert started(a.on_exit(2, -9, 50.0)) == [(1, 2)]
    assert a.on_exit(2, -9, 50.0) == [], "told twice"


def test_after_the_end_nothing_is_started() -> None:
    a = up(agent())
    assert {e.process for e in a.stop() if isinstance(e, KillProcess)} == {1, 2}
    assert started(a.on_exit(1, -15, 50.0)) == []
    assert started(a.on_orders(orders("start", version=9, incarnations=(2, 2)))) == []


# ------------------------------------------------------------------------------------------------ ranks


def test_a_process_is_told_who_it_is() -> None:
    a = agent()
    a.on_orders(orders())
    ((number, welcome),) = sent(a.on_rank(2, Hello(process=2, pid=5)))
    assert isinstance(welcome, Welcome)
    assert (number, welcome.rank, welcome.world_size, welcome.page, welcome.local_dir) == (2, 1, 2, "/page2", "/local1")


@pytest.mark.parametrize("number", [0, 3, -1, 99])
def test_a_number_that_is_no_process_is_dropped_and_counted(number: int) -> None:
    a = up(agent())
    assert a.on_rank(number, Report(stage="done", generation=1)) == []
    assert a.dropped == 1


def test_the_last_words_of_a_dead_process_change_nothing() -> None:
    a = up(agent())
    a.on_exit(2, -9, 50.0)
    a.on_rank(2, Report(stage="done", generation=1, step=7))
    assert a.dropped == 1
    (facts,) = [f for f in a.facts(53.0).ranks if f.rank == 1]
    assert (facts.stage, facts.exit_code, facts.dead_s) == (Stage.EXITED, -9, 3.0)


def test_a_fault_is_told_of_the_process_that_reports_it_whatever_it_says() -> None:
    a = up(agent())
    lie = FaultReport("exception", rank=99, incarnation=77, text="x", at=1.0)
    a.on_rank(2, Report(stage="training", generation=1, fault=lie))
    (facts,) = [f for f in a.facts(53.0).ranks if f.rank == 1]
    assert facts.fault is not None
    assert (facts.fault.rank, facts.fault.incarnation) == (1, 1)


def test_an_injection_fires_once() -> None:
    a = agent(injections=(Injection(id=1, kind="kill", rank=1),))
    a.on_orders(orders())
    assert [i.id for _, w in sent(a.on_rank(2, Hello(process=2, pid=5))) for i in w.injections] == [1]
    a.on_rank(2, Injected(id=1))
    a.on_exit(2, -9, 50.0)
    a.on_orders(orders("pause", version=2, generation=1, incarnations=(1, 2)))
    (welcome,) = [w for _, w in sent(a.on_rank(3, Hello(process=3, pid=6))) if isinstance(w, Welcome)]
    assert welcome.injections == []


# ------------------------------------------------------------------------------------------------ spares


def trained(a: AgentLogic, generation: int, step: int) -> None:
    for p in a.processes.values():
        p.progress = Progress(step=step)
        a.on_rank(p.number, Report(stage="training", generation=generation, step=step, resumed=True))


def with_spare(dying: Collection[int] = ()) -> AgentLogic:
    a = up(agent(spares="one", dying=dying))
    for step in range(CALM_STEPS):
        trained(a, generation=1, step=step)
        assert started(a.want_spares()) == []
    trained(a, generation=1, step=CALM_STEPS)
    assert started(a.want_spares()) == [(0, 0)]
    a.on_started(3, 7)
    a.on_rank(3, Hello(process=3, pid=7))
    return a


def test_a_parked_spare_takes_the_place_at_once() -> None:
    a = with_spare()
    a.on_rank(3, Report(stage="parked", generation=0))
    a.on_exit(1, -9, 50.0)
    effects = a.on_orders(orders("pause", version=3, generation=2, incarnations=(2, 1)))
    assert started(effects) == []
    assert a.current[0] == 3
    assert [f.incarnation for f in a.facts(0.0).ranks] == [2, 1]


@pytest.mark.parametrize("stage", ["setup", "parked"])
@pytest.mark.parametrize("killed_by", ["us", "somebody"])
def test_a_spare_that_was_killed_takes_no_place_while_it_dies(stage: str, killed_by: str) -> None:
    """It would be the rank's next process to die. At the end of the loop all spares end, and a rank may die then."""
    dying: set[int] = set()
    a = with_spare(dying)
    a.on_rank(3, Report(stage=stage, generation=0))
    if killed_by == "us":
        assert [e.process for e in a.end_spares() if isinstance(e, KillProcess)] == [3]
    else:
        dying.add(7)
    a.on_exit(1, -9, 50.0)
    effects = a.on_orders(orders("pause", version=3, generation=2, incarnations=(2, 1)))
    assert started(effects) == [(0, 2)]
    assert a.current[0] == 4
    a.on_exit(3, -9, 50.0)
    assert [f.incarnation for f in a.facts(0.0).ranks if f.stage is not Stage.EXITED] == [2, 1]


def test_a_new_spare_is_built_when_the_recovery_is_some_steps_past() -> None:
    a = with_spare()
    a.on_rank(3, Report(stage="parked", generation=0))
    a.on_exit(1, -9, 50.0)
    a.on_orders(orders("pause", version=3, generation=2, incarnations=(2, 1)))
    a.on_orders(orders("run", version=4, generation=2, incarnations=(2, 1), phase="Running"))
    for step in range(CALM_STEPS, 2 * CALM_STEPS):
        trained(a, generation=2, step=step)
        assert started(a.want_spares()) == []
    trained(a, generation=2, step=2 * CALM_STEPS)
    assert started(a.want_spares()) == [(0, 0)]


def test_a_spare_may_not_touch_the_store() -> None:
    a = with_spare()
    ((_, reply),) = sent(a.on_rank(3, StoreRequest(id=1, generation=1, op="set", key="k")))
    assert isinstance(reply, StoreReply)
    assert reply.error


def test_a_spare_that_dies_again_and_again_is_given_up() -> None:
    a = with_spare()
    tries = 1
    number = 3
    while a.on_exit(number, 1, 50.0) or started(a.want_spares()):
        number += 1
        tries += 1
        assert tries < 10
    assert tries == 6, "three times for each rank"


def test_a_restart_of_the_job_ends_the_spares_and_forgets_what_was_recorded() -> None:
    a = with_spare()
    a.on_rank(1, Recorded(scope="setup", index=0, data=b"old"))
    effects = a.on_orders(orders(version=3, generation=2, incarnations=(2, 2), attempt=1))
    assert {e.process for e in effects if isinstance(e, KillProcess)} == {1, 2, 3}
    a.on_rank(1, Recorded(scope="setup", index=1, data=b"on its way when the orders came"))
    for number in (1, 2, 3):
        effects = a.on_exit(number, -9, 50.0)
    fresh = a.current[0]
    a.on_rank(fresh, Hello(process=fresh, pid=8))
    assert a._welcome(replace(a.processes[fresh], stand_in=True)).log == []


# ------------------------------------------------------------------------------------------------ the store


@pytest.mark.parametrize("generation", [0, 2, 1 << 40])
def test_a_store_answers_for_the_current_generation_only(generation: int) -> None:
    a = up(agent())
    assert a.on_rank(1, StoreRequest(id=1, generation=1, op="get", key="k")) == []
    ((_, reply),) = sent(a.on_rank(2, StoreRequest(id=1, generation=generation, op="set", key="k", value=b"stale")))
    assert isinstance(reply, StoreReply)
    assert reply.error
    assert a.dropped == 1
    answers = dict(sent(a.on_rank(2, StoreRequest(id=2, generation=1, op="set", key="k", value=b"now"))))
    assert answers[1] == StoreReply(id=1, value=b"now"), "and who waits there is not forgotten"


def ask(store: GenerationStore, process: int, op: str, key: str = "k", **more: object) -> list[tuple[int, StoreReply]]:
    return store.handle(process, StoreRequest(id=process, generation=1, op=op, key=key, **more))  # type: ignore[arg-type]


def test_what_is_set_can_be_read_and_counted() -> None:
    s = GenerationStore(1, 2)
    ask(s, 1, "set", value=b"a")
    ask(s, 1, "append", value=b"b")
    assert ask(s, 2, "get") == [(2, StoreReply(id=2, value=b"ab"))]
    assert ask(s, 2, "count")[0][1].number == 1
    assert ask(s, 2, "check")[0][1].number == 1
    assert [ask(s, 2, "delete")[0][1].number for _ in range(2)] == [1, 0]


def test_all_who_wait_are_answered_when_it_comes() -> None:
    s = GenerationStore(1, 3)
    assert ask(s, 1, "get") == ask(s, 2, "get") == []
    replies = dict(ask(s, 3, "add", amount=5))
    assert replies == {3: StoreReply(id=3, number=5), 1: StoreReply(id=1, value=b"5"), 2: StoreReply(id=2, value=b"5")}


def test_adding_to_what_is_no_number_is_an_error_and_not_the_end() -> None:
    s = GenerationStore(1, 2)
    ask(s, 1, "set", value=b"abc")
    ((_, reply),) = ask(s, 1, "add", amount=1)
    assert "not a number" in reply.error
    assert ask(s, 2, "get")[0][1].value == b"abc"
    ask(s, 1, "set", key="n", value=str(2**63 - 1).encode())
    ((_, reply),) = ask(s, 1, "add", key="n", amount=1)
    assert reply.error, "as it could not be sent"


@given(st.lists(st.integers(-1000, 1000), max_size=20))
def test_counters_count(amounts: list[int]) -> None:
    s = GenerationStore(1, 2)
    answers = [ask(s, 1, "add", amount=a)[0][1].number for a in amounts]
    assert answers == [sum(amounts[: n + 1]) for n in range(len(amounts))]


def test_a_gate_opens_for_all_at_once_with_what_they_agree_on() -> None:
    s = GenerationStore(1, 2)
    assert ask(s, 1, "arrive", amount=3) == []
    assert ask(s, 1, "arrive", amount=3) == [], "one that comes twice is still one"
    assert dict(ask(s, 2, "arrive", amount=3)) == {1: StoreReply(id=1, number=3), 2: StoreReply(id=2, number=3)}
    assert ask(s, 1, "arrive", amount=1) == [], "and is shut again behind them"
    assert {r.number for _, r in ask(s, 2, "arrive", amount=2)} == {0}, "they do not agree"


def test_compare_and_set() -> None:
    s = GenerationStore(1, 2)
    assert ask(s, 1, "compare_set", value=b"a")[0][1].value == b"a"
    assert ask(s, 1, "compare_set", expected=b"x", value=b"b")[0][1].value == b"a"
    assert ask(s, 1, "compare_set", expected=b"a", value=b"b")[0][1].value == b"b"


def test_a_stand_in_that_was_on_its_way_gets_what_another_node_kept() -> None:
    a = up(agent())
    a._local_steps = lambda p: ()
    for number in (1, 2):
        a.on_exit(number, -9, 0.0)
    started = a.on_orders(orders("pause", version=3, generation=2, incarnations=(2, 2), phase="Pausing"))
    number = next(e.process for e in started if isinstance(e, StartProcess) and e.rank == 0)
    a.on_rank(number, Hello(process=number, pid=1))
    said = orders("pause", version=4, generation=2, incarnations=(2, 2), phase="Pausing")
    said = msgspec.structs.replace(said, kept_at={0: KeptAt("there|1", 3)})
    assert not [e for e in a.on_orders(said) if type(e) is FetchLocal]
    parked = Report(stage=Stage.PARKED.value, generation=0, step=-1, clean=False, undo=False, scope="setup")
    assert FetchLocal(number, "there|1") in a.on_rank(number, parked), "now it has a place to put it"
    assert FetchLocal(number, "there|1") not in a.on_rank(number, parked), "once"
    newer = msgspec.structs.replace(said, kept_at={0: KeptAt("there|1", 4)})
    assert FetchLocal(number, "there|1") in a.on_orders(newer), "and again where more has come there since"


def standing_by(ahead: list[int], version: int = 1) -> Orders:
    return Orders(
        term=1, version=version, generation=1, ranks=[], phase="Running", node=-1, world_size=4, step=9, ahead=ahead,
        log_at=dict.fromkeys(ahead, "home|1"),
    )  # fmt: skip


def prepared(spares: str = "each") -> AgentLogic:
    """Stands by, with a parked spare of each rank that it was told."""
    a = agent(spares)
    a.on_orders(standing_by([2, 3, 0, 1]))
    while new := [e for e in a.want_spares() if isinstance(e, StartProcess)]:
        assert new[0].log_at == "home|1", "what was exchanged in the set-up is asked for first"
        park(a, new[0].process)
    return a


def park(a: AgentLogic, number: int) -> list:
    a.on_started(number, 1000 + number)
    a.on_rank(number, Hello(process=number, pid=1000 + number))
    parked = Report(stage=Stage.PARKED.value, generation=0, step=-1, clean=False, undo=False, scope="setup")
    return a.on_rank(number, parked)


def test_one_that_stands_by_has_spares_for_what_it_was_told() -> None:
    a = prepared()
    assert [(p.rank, p.spare) for p in a.processes.values()] == [(2, True), (3, True), (0, True), (1, True)]
    facts = a.facts(0.0)
    assert (facts.ahead, facts.ranks) == ([0, 1, 2, 3], []), "they are no ranks yet"
    assert len(prepared("one").processes) == 1
    assert not prepared("none").processes


def test_it_brings_up_a_node_of_them_at_a_time_and_says_when_it_is_ready() -> None:
    a = agent("each")
    a.on_orders(standing_by([2, 3, 0, 1]))
    first, second = started(a.want_spares()), started(a.want_spares())
    assert (first, second) == ([(2, 0)], [(3, 0)])
    assert a.want_spares() == [], "as many as a node has ranks"
    said = [e.text for number in (1, 2) for e in park(a, number) if isinstance(e, Say)]
    assert said == []
    a.want_spares(), a.want_spares()
    said = [e.text for number in (3, 4) for e in park(a, number) if isinstance(e, Say)]
    assert said == ["ready to take the place of node 0 or 1 at once"]


def test_given_a_place_its_spares_take_over_and_the_others_end() -> None:
    a = prepared()
    at = {p.rank: p.number for p in a.processes.values()}
    ranks = [RankOrder(rank=r, incarnation=2, generation=2, want="pause") for r in (2, 3)]
    effects = a.on_orders(
        msgspec.structs.replace(standing_by([], 2), generation=2, ranks=ranks, node=1, phase="Pausing",
                                kept_at={2: KeptAt("there|1", 3), 3: KeptAt("there|1", 3)})
    )  # fmt: skip
    assert started(effects) == [], "nothing has to be started"
    assert a.current == {2: at[2], 3: at[3]}
    assert {e.process for e in effects if isinstance(e, KillProcess)} == {at[0], at[1]}
    assert {e.process for e in effects if isinstance(e, FetchLocal)} == {at[2], at[3]}, "even where it had some before"
    assert a.facts(0.0).ahead == []


def test_told_to_prepare_for_others_it_ends_the_spares_of_the_first() -> None:
    a = prepared()
    at = {p.rank: p.number for p in a.processes.values()}
    effects = a.on_orders(standing_by([0, 1], 2))
    assert {e.process for e in effects if isinstance(e, KillProcess)} == {at[2], at[3]}


def test_another_agent_is_told_the_log_of_our_ranks_and_what_is_kept_for_others() -> None:
    a = up(agent())
    a.on_rank(1, Recorded(scope="setup", index=1, data=b"one"))
    assert a.kept(0, 0).log == [b"", b"one"]
    assert a.kept(0, 7).log == [], "of another attempt"
    a.keeper.keep_log(KeepLog(attempt=0, rank=3, index=0, data=b"theirs"))
    assert a.kept(3, 0).log == [b"theirs"]


def test_what_is_kept_of_another_attempt_is_of_another_history() -> None:
    a = up(agent())
    a.keeper.keep_slot(KeepSlot(attempt=0, rank=3, generation=1, index=0, step=200, data=b"x"))
    assert a.facts(0.0).kept == {3: [200]}
    a.on_orders(orders(version=3, attempt=1))
    assert a.facts(0.0).kept == {}
    a.keeper.keep_slot(KeepSlot(attempt=1, rank=3, generation=2, index=1, step=11, data=b"x"))
    assert a.facts(0.0).kept == {3: [11]}
