"""Faults in onward itself, one at a time. A simulator that does not notice them is worth nothing.

Each mutant replaces one function of the production code (or of the model of a rank) by one that lacks a single check.
`planted` puts it in place for the length of a `with` block.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

import onward.core
import onward.manager
from onward.agent.effects import Effect
from onward.agent.keeper import Keeper
from onward.agent.kvstore import GenerationStore
from onward.agent.logic import AgentLogic
from onward.agent.stores import Asker, Stores
from onward.core.agreement import Agreement, Copy, NoAgreement, Part, _common_group, agree
from onward.core.elastic import beginning_anew, goes_on_with_fewer
from onward.core.facts import RankFacts
from onward.core.job import Facts, Job, current, short_of
from onward.core.membership import Electorate, Member, Outlook, Places, Vote, fill, vote
from onward.core.moving import why_not
from onward.core.saving import _is_fetching
from onward.core.switch import hold_all, settled
from onward.manager.logic import ManagerLogic
from onward.manager.office import Claim, go_on
from onward.manager.orders import Draft, form
from onward.manager.roll import Roll
from onward.wire.messages import AgentFacts, Form, Orders, StoreReply, StoreRequest
from onward.wire.peers import KeepSlot

from .between import Between
from .block import Block
from .fence import Fence
from .following import Ended, Feed
from .transaction import Transaction


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    places: tuple[tuple[Any, str, Any], ...]  # (owner, attribute, replacement)
    nodes: int = 1  # with fewer it makes no difference


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    old = [(owner, name, getattr(owner, name)) for owner, name, _ in mutant.places]
    for owner, name, new in mutant.places:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, was in old:
            setattr(owner, name, was)


# ---------------------------------------------------------------------------------------------------- fencing


def _any_orders(self: AgentLogic, orders: Orders) -> list[Effect]:
    self.term, self.orders, self.record, self.changed = orders.term, orders, orders.job or self.record, True
    self.node, self.world_size = orders.node, orders.world_size
    return self.reconcile()


def _any_generation(self: Stores, asker: Asker, q: StoreRequest, orders: Orders | None) -> list[Effect]:
    if self._store is None or self._store.generation != q.generation:
        self._store = GenerationStore(q.generation, orders.world_size if orders is not None else 0)
    return [e for who, reply in self._store.handle(asker, q) for e in self.reply(who, reply)]


def _any_incarnation(job: Job, facts: Facts) -> dict[int, Any]:
    return {r: f for r, f in facts.items() if r < job.world_size}


def _same_term(last: Job, term: int, *args: Any) -> Claim:
    return go_on(last, max(term - 1, 1), *args)


# ---------------------------------------------------------------------------------------------------- agreement


def _lowest_step(copies: Sequence[Copy]) -> Agreement | NoAgreement:
    outcome = agree(copies)
    reachable = [c.step - 1 for c in copies if c.step is not None and c.undo]
    if isinstance(outcome, NoAgreement) or not reachable or min(reachable) >= outcome.step:
        return outcome
    parts = {c.rank: Part.UNDO if c.undo and c.step == min(reachable) + 1 else Part.RECEIVE for c in copies}
    return replace(outcome, step=min(reachable), parts=parts)


def _local_state_ignored(copies: Sequence[Copy]) -> Agreement | NoAgreement:
    known = [c.step for c in copies if c.step is not None and c.clean]
    return agree([replace(c, local_steps=(*c.local_steps, *known)) for c in copies])


def _nothing_taken_back(copies: Sequence[Copy]) -> Agreement | NoAgreement:
    outcome = agree(copies)
    if isinstance(outcome, NoAgreement):
        return outcome
    return replace(outcome, parts={r: Part.KEEP if p is Part.UNDO else p for r, p in outcome.parts.items()})


# ---------------------------------------------------------------------------------------------------- several nodes


def _half_is_enough(electorates: Sequence[Electorate], outlook: Outlook) -> Vote:
    halves = [2 * sum(m.id in outlook.following for m in e.members) >= len(e.members) for e in electorates]
    return Vote(all(halves), "NoQuorum")


def _tie_broken_anywhere(electorates: Sequence[Electorate], outlook: Outlook) -> Vote:
    first = [next((m.id for m in e.members if m.id in outlook.following), "") for e in electorates]
    return vote([replace(e, seat=seat) for e, seat in zip(electorates, first, strict=True)], outlook)


def _silence_is_death(electorates: Sequence[Electorate], outlook: Outlook) -> Vote:
    gone = {m.id for e in electorates for m in e.members if m.id not in outlook.following}
    return vote(electorates, replace(outlook, gone=outlook.gone | gone))


def _anybody_fills(places: Places, here: Sequence[Member], starting: bool = False) -> Places:
    rest = [m for m in here if not (starting and m.standby)]
    return tuple(holder if holder is not None or not rest else rest.pop(0) for holder in places)


def _any_slot(self: Keeper, m: KeepSlot) -> bool:
    r = self._of(m.rank, m.attempt)
    if r is not None:
        r.slots.pop(1 - m.index, None)
        r.slots[m.index] = (m.step, m.data)
    return r is not None


def _stays_in_place(self: AgentLogic, node: int) -> list[Effect]:
    self.node = node
    self.current.clear()
    return []


def _any_term(self: AgentLogic, orders: Orders) -> bool:
    return orders.term >= self.term


def _nobody_is_silent(self: Roll, now: float) -> list[AgentFacts]:
    return list(self.latest.values())


# ---------------------------------------------------------------------------------------------------- the rest


def _budget_forgotten(*args: Any) -> Claim:
    claimed = go_on(*args)
    return claimed if claimed.job is None else replace(claimed, job=replace(claimed.job, restarts_used=0))


_arrive = GenerationStore._arrive


def _gate_ajar(self: GenerationStore, process: int, q: StoreRequest) -> list[tuple[int, StoreReply]]:
    self._world_size -= 1
    try:
        return _arrive(self, process, q)
    finally:
        self._world_size += 1


def _shape_kept_from_replacements(*args: Any) -> Form:
    told = form(*args)
    return msgspec.structs.replace(told, light=0) if told.part == "receive" else told


_publish = Transaction._publish


def _published_too_late(self: Transaction, step: int) -> Any:
    if self.open and self.light_at:
        return iter(())  # before the last collective: left out
    return _publish(self, step)


def _never(self: Any, *args: Any) -> bool:
    return False


def _only_when_receiving(self: Fence, form: Form) -> bool:
    return form.part == "receive" and form.step > self._p.tx.begun


# ---------------------------------------------------------------------------------------------------- hot switch


def _swap_unheard(self: ManagerLogic, job: Job, now: float) -> None:
    before, self.job = self.job, job
    assert before is not None
    self._watch.forget(job)
    self.changed_job = True
    self._tell_news(now, new_phase=(before.phase, before.generation) != (job.phase, job.generation))


_end = Feed.end


def _next_step_untold(self: Feed, item: Ended) -> None:
    _end(self, replace(item, local=tuple(slot for slot in item.local if slot[0] == item.step)))


def _always_settled(*args: Any) -> bool:
    return True


def _any_group(copies: Any) -> str:
    return max((c.joined for c in copies), default="")


_DECIDING = [
    importlib.import_module(f"{room.__name__}.{module.name}")
    for room in (onward.core, onward.manager)
    for module in pkgutil.iter_modules(room.__path__)
]


def _by_exit_code(f: RankFacts) -> bool:
    return f.exit_code == 0


def _everywhere(function: Any, replacement: Any) -> tuple[tuple[Any, str, Any], ...]:
    """Every module that decides with `function` has imported it by its name."""
    name = function.__name__
    places = [(m, name, replacement) for m in _DECIDING if getattr(m, name, None) is function]
    assert places, f"{name} is nowhere to be found"
    return tuple(places)


def _mutant(name: str, what: str, *places: tuple[Any, str, Any], nodes: int = 1) -> Mutant:
    return Mutant(name, what, places, nodes)


MUTANTS = (
    _mutant("old orders", "an agent follows orders of an older term", (AgentLogic, "on_orders", _any_orders)),
    _mutant("old store", "a store answers for a generation that is over", (Stores, "ask", _any_generation)),
    _mutant(
        "old incarnation",
        "facts about a process that was replaced are taken for its successor's",
        *_everywhere(current, _any_incarnation),
    ),
    _mutant("same term", "a new manager takes the term of the last one", *_everywhere(go_on, _same_term)),
    _mutant("lowest step", "the job goes back to the lowest step", *_everywhere(agree, _lowest_step)),
    _mutant(
        "local state ignored", "a step is agreed on that a rank cannot reach", *_everywhere(agree, _local_state_ignored)
    ),
    _mutant("double commit", "an unfinished step is kept and run again", *_everywhere(agree, _nothing_taken_back)),
    _mutant("budget forgotten", "a new manager counts restarts from zero", *_everywhere(go_on, _budget_forgotten)),
    _mutant("gate ajar", "the gate opens with one rank missing", (GenerationStore, "_arrive", _gate_ajar)),
    _mutant(
        "published too late", "local state is not safe at a commit", (Transaction, "_publish", _published_too_late)
    ),
    _mutant(
        "shape not told",
        "a replacement goes on with careful steps while the others' are light",
        *_everywhere(form, _shape_kept_from_replacements),
    ),
    _mutant("refusal overheard", "a rank takes the refusal of the gate for its opening", (Block, "_refused", _never)),
    _mutant(
        "results of another stretch",
        "a rank tells others the results of an evaluation that is over",
        (Between, "forget_old", _never),
    ),
    _mutant(
        "code after the block left out",
        "a rank that was given the state in a try that failed does not run what follows its last block",
        (Fence, "_must_show", _only_when_receiving),
    ),
    _mutant(
        "half is enough",
        "half of the votes count as a majority",
        *_everywhere(vote, _half_is_enough),
        nodes=2,
    ),
    _mutant(
        "tie broken anywhere",
        "the casting vote belongs to whoever is there, not to the agent that hosted the manager",
        *_everywhere(vote, _tie_broken_anywhere),
        nodes=2,
    ),
    _mutant(
        "silence is death",
        "who does not answer is not counted",
        *_everywhere(vote, _silence_is_death),
        nodes=2,
    ),
    _mutant("old votes", "an agent that has fallen silent still votes", (Roll, "present", _nobody_is_silent)),
    _mutant(
        "place given twice",
        "who holds a place is given another",
        *_everywhere(fill, _anybody_fills),
        nodes=2,
    ),
    _mutant("any slot", "local state of another generation replaces what is kept", (Keeper, "keep_slot", _any_slot)),
    _mutant(
        "stays in place", "an agent without a place keeps its ranks", (AgentLogic, "_move", _stays_in_place), nodes=2
    ),
    _mutant(
        "any end is a good one",
        "a script has ended well that ends in a step that does not count, or in a rehearsal",
        (RankFacts, "ended_well", property(_by_exit_code)),
    ),
    _mutant("two managers in a term", "an agent follows any manager", (AgentLogic, "_may_follow", _any_term)),
)

# ---------------------------------------------------------------------------------------------------- moving


def _always_may(job: Job, facts: Facts, nodes: Any, dead: Any) -> str:
    return ""


def _always_here(job: Job, rank: int, here: Facts) -> bool:
    return False


def _not_of_standbys(roll: Roll, rank: int) -> str:
    keepers = [m for a, m in roll.latest.items() if a not in roll.absent and m.kept.get(rank) and roll._nodes.get(a)]
    return keepers[0].agent.peer if keepers else ""


def _waits_for_whoever_comes(job: Job) -> bool:
    return False


def _any_number(job: Job) -> str:
    return short_of(replace(job, limits=replace(job.limits, min_nodes=1)))


def _for_all(d: Draft, rank: int, facts: Facts) -> Form:
    told = form(d, rank, facts)
    return told if d.job.agreement is not None else msgspec.structs.replace(told, members=[])


def _nobody_anew(job: Job, here: Facts) -> tuple[int, ...]:
    return ()


def _past_whatever_is_between(d: Draft, rank: int, facts: Facts) -> Form:
    told = form(d, rank, facts)
    return msgspec.structs.replace(told, past=told.past or told.fresh)


def _with_a_past(d: Draft, rank: int, facts: Facts) -> Form:
    return msgspec.structs.replace(form(d, rank, facts), fresh=False)


SHORT_MUTANTS = (
    _mutant(
        "least forgotten",
        "a job starts again with fewer nodes than it needs",
        *_everywhere(short_of, _any_number),
    ),
    _mutant(
        "who is there untold",
        "the first group of a start with fewer ranks is formed for all",
        *_everywhere(form, _for_all),
    ),
)

ELASTIC_MUTANTS = (
    _mutant(
        "standby first",
        "without `recover`, too, a job waits for whoever stands by, though nobody has kept what it needs",
        *_everywhere(goes_on_with_fewer, _waits_for_whoever_comes),
        *_everywhere(beginning_anew, _nobody_anew),
    ),
    _mutant(
        "nobody begins anew",
        "local state that nobody has kept makes everybody start again, though a new process could do without",
        *_everywhere(beginning_anew, _nobody_anew),
    ),
    _mutant(
        "past what is between",
        "who joins does not run the collectives after the last step that the others have still to run",
        *_everywhere(form, _past_whatever_is_between),
    ),
    _mutant(
        "joins with a past",
        "who joins is to have kept its local state",
        *_everywhere(form, _with_a_past),
    ),
)

SWITCH_MUTANTS = (
    _mutant(
        "old address",
        "after a swap the state is asked for at the node that was released",
        (ManagerLogic, "_take_up", _swap_unheard),
    ),
    _mutant(
        "next step untold", "who follows is not told of local state that is ahead", (Feed, "end", _next_step_untold)
    ),
    _mutant(
        "group of some",
        "a group is taken that not all have connected",
        *_everywhere(_common_group, _any_group),
    ),
    _mutant(
        "never settled",
        "a stand-in takes over before it has come to the fence",
        *_everywhere(settled, _always_settled),
        *_everywhere(hold_all, _always_settled),
    ),
)

MOVE_MUTANTS = (
    _mutant(
        "last copy given up",
        "a node is given up with the only copy of the state, or the only vote",
        *_everywhere(why_not, _always_may),
    ),
    _mutant(
        "kept by nobody else",
        "who takes over a place does not use what it had kept of those ranks itself",
        (Roll, "keeps_newest", _not_of_standbys),
    ),
    _mutant(
        "nothing on its way",
        "what a node that has just taken a place still fetches counts as lost",
        *_everywhere(_is_fetching, _always_here),
    ),
)
