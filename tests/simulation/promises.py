"""The promises of docs/promises.md, looked at after every event. The truth is what the processes really hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from onward.agent.effects import StartProcess
from onward.core.agreement import Part
from onward.core.checkpoints import Grant
from onward.core.facts import Scope, Stage
from onward.core.faults import IDENTICAL_LIMIT
from onward.core.job import OVER, Job, Phase
from onward.core.membership import Outlook, index_of, vote
from onward.core.policy import Policy
from onward.wire.messages import Form, Orders, StoreRequest

from .copies import Copies, nodes_of
from .fabric import MASK, Op, Request, mix
from .scenario import CONTROL, NODES
from .transaction import HALF, first_local, first_shared

if TYPE_CHECKING:
    from .managers import SimManager
    from .ranks import RankProcess
    from .shells import SimAgent
    from .world import World


SLOWING = ("stop", "hang", "pause-process", "start-fails", "leave", *CONTROL, *NODES)


class Broken(AssertionError):
    """A promise was not kept."""


class Promises:
    """Knows the fault-free history and compares everything with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._copies = Copies(world)
        s = world.scenario
        self._shared = [first_shared()]
        self._local = [[first_local(r)] for r in range(s.world_size)]
        for k in range(s.steps):
            self._advance(k)
        self._touched: list[RankProcess] = []
        self._job: Job | None = None
        self._restarts = 0  # most that any agent has been told of
        self._started: dict[int, int] = {}  # rank -> highest incarnation really started
        self._moved = 0  # most processes that any manager wanted to be started elsewhere: no restarts of a container
        self._accepted: dict[int, tuple[int, int]] = {}  # agent -> (term, generation)
        self._followed: dict[tuple[int, int], str] = {}  # (agent, term) -> seat of the manager
        self._past_pausing: dict[int, tuple[Any, ...]] = {}  # generation -> who forms it, and how
        self._ran: tuple[int, int] = (0, 0)  # newest (generation, term) that any manager has let run
        self._formed = 0  # highest generation that any rank has formed
        self._members_of: dict[tuple[int, int], RankProcess] = {}  # (generation, rank) -> who formed it
        self.given_up: set[str] = set()  # agents that found no manager for long
        self._excused: set[int] = set()  # were cut off when others ended
        self._verdicts: dict[int, tuple[int, int | None]] = {}  # agent -> (term, exit code) when it ended
        self._attempt_committed: dict[int, int] = {}  # attempt -> furthest committed step
        self._kept = -1  # step that was saved when everybody was last started again
        self.followed = 0  # claims to hold the state of another
        self.short = 0  # how often everybody started again but for some that were absent
        self.shrunk = self.grown = 0  # how often a job went on with fewer ranks, and with more
        self._good_ends: dict[int, dict[int, int]] = {}  # attempt -> the step after which a rank's script has ended

    def _advance(self, k: int) -> None:
        """The step k of a run without faults."""
        s = self.world.scenario
        drawn = [local[k] if s.elastic else mix(local[k], 3) for local in self._local]
        total = 0
        for i in range(s.collectives):
            result = 0
            if s.elastic:
                result = sum(mix(mix(self._shared[k], lane), k * 10 + i) for lane in range(s.lanes)) & MASK
            for r in range(0 if s.elastic else s.world_size):
                result = mix(result, mix(mix(self._shared[k], drawn[r]), r * 1000 + k * 10 + i))
            total = mix(total, result)
        self._shared.append(mix(self._shared[k], total))
        for r in range(s.world_size):
            self._local[r].append(mix(drawn[r], 5) if s.noise else drawn[r])

    def _broken(self, promise: int, text: str) -> None:
        raise Broken(f"promise {promise}: {text}")

    # ------------------------------------------------------------------------------------------ 1 and 2: steps

    def after_event(self) -> None:
        """Whoever changed in this event must hold what the fault-free run held at its step."""
        for p in self._touched:
            if p.alive and p.holds and p.tx.clean:
                self._check_state(p, "after an event")
        self._touched.clear()

    def _check_state(self, p: RankProcess, when: str) -> None:
        tx = p.tx
        if tx.shared != self._shared[tx.step]:
            what = "half an update" if tx.shared == HALF else "another history"
            self._broken(2, f"{p} {when} says it is at step {tx.step}, but its shared state is {what}")
        if not tx.open and tx.local != self._local[p.rank][tx.step]:
            self._broken(2, f"{p} {when}: its local state is not that of step {tx.step}")

    def on_collective(self, ops: list[Op]) -> None:
        first = ops[0]
        for op in ops:
            if (op.step, op.base) != (first.step, first.base):
                self._broken(
                    2, f"gradients were mixed: {first.process} at step {first.step}, {op.process} at {op.step}"
                )

    def on_result_between(self, p: RankProcess, index: int, result: int) -> None:
        s = self.world.scenario
        want, each = 0, mix(self._shared[p.tx.step], index)
        for _ in range(s.world_size):
            want = mix(want, each)
        want = s.lanes * each & MASK if s.elastic else want
        if result != want:
            self._broken(2, f"{p}: collective {index} after step {p.tx.step} gave another result than without faults")

    def on_publish(self, p: RankProcess, step: int, local: int) -> None:
        if local != self._local[p.rank][step]:
            self._broken(2, f"{p} published as local state of step {step} what is not")

    def on_commit(self, p: RankProcess, k: int) -> None:
        """`p` tells its user that step k counts."""
        self._touched.append(p)
        if p.membership.generation < self._formed:
            self._check_late_commit(p, k)
        if p.committed > k:
            self._broken(2, f"{p} commits step {k} a second time")
        if k > max(p.committed, p.received):
            self._broken(2, f"{p} commits step {k}, the last one was {p.committed - 1}")
        for peer in p.membership.peers:
            if max(step for step, _ in peer.tx.slots) < k + 1:
                self._broken(2, f"{p} commits step {k} while the local state of rank {peer.rank} is not safe")
            self._check_kept(p, peer, k + 1)
        self._check_state(p, f"committing step {k}")
        done = self._attempt_committed.get(p.attempt, 0)
        self._attempt_committed[p.attempt] = max(done, k + 1)

    def _check_late_commit(self, p: RankProcess, k: int) -> None:
        """Behind a cut a rank may still say what had been decided: all had entered the last collective of that step."""
        stale = self.world.agent_of(p.rank) is not p.agent and any(f.kind in NODES for f in self.world.fired)
        if stale and k < self._attempt_committed.get(p.attempt, 0) + 1:
            return
        self._broken(1, f"{p} commits step {k} in generation {p.membership.generation}, others are in {self._formed}")

    def _check_kept(self, p: RankProcess, peer: RankProcess, step: int) -> None:
        """Where another node is to keep local state, it has it, unless it was gone or cut off."""
        keeper = peer.partner.keeper
        if keeper is None or not keeper.running or not peer.alive or not peer.agent.running:
            return
        same = peer.membership.generation == p.membership.generation and not peer.is_spare
        kept = keeper.logic.keeper.steps(peer.attempt).get(peer.rank, ())
        if same and step not in kept and not self._superseded(peer):
            self._broken(2, f"{p} commits step {step - 1} while {keeper} has no copy of rank {peer.rank}")

    def _superseded(self, p: RankProcess) -> bool:
        """Somebody else has its rank now: what it still sends is refused."""
        return p.membership.generation < self._formed

    def on_followed(self, p: RankProcess, source: RankProcess, generation: int) -> None:
        """`p` says that it holds what the rank held that it has followed, and which still stands at the fence."""
        self._touched.append(p)
        self._check_state(p, "having followed")
        ahead = [slot for slot in source.tx.slots if slot[0] > p.tx.step]
        if source.membership.generation < generation and not set(ahead) <= set(p.tx.slots):
            self._broken(2, f"{p} has not the local state of step {p.tx.step + 1}, which {source} had published")
        self.followed += 1

    def on_not_joined(self, p: RankProcess, group: str) -> None:
        """`p` is to go on in a group that it has not connected: the others would wait for it."""
        self._broken(3, f"{p} is to take group {group}, and has none of that name")

    def on_arrive(self, p: RankProcess, form: Form) -> None:
        """`p` is told how to go on: what it had told its user must not be taken back."""
        if form.step < p.committed and not p.tx.was_damaged:
            self._broken(2, f"{p} had committed {p.committed} steps and is taken back to {form.step}")

    def on_arrived(self, p: RankProcess, form: Form) -> None:
        self._touched.append(p)
        if p.tx.step != form.step:
            self._broken(2, f"{p} arrived at step {p.tx.step}, not {form.step}")
        self._check_state(p, f"arriving at step {form.step}")
        p.committed = min(p.committed, form.step)
        if form.part in ("receive", "load"):
            p.received = form.step

    def on_publish_checkpoint(self, agent: SimAgent, grant: Grant, parts: dict[str, Any]) -> None:
        """A checkpoint gets its name: it must be whole, of one step, and of the generation that counts."""
        orders = agent.logic.orders
        if orders is not None and grant.generation != orders.generation:
            self._broken(1, f"a checkpoint of generation {grant.generation} is published in {orders.generation}")
        job = self._job
        for r in job.ranks if job is not None and job.generation == grant.generation else ():
            if parts.get(f"local{r}", (None,))[0] != self._local[r][grant.step]:
                self._broken(2, f"the checkpoint of step {grant.step} has not the local state of rank {r}")
        if parts.get("shared") != self._shared[grant.step]:
            self._broken(2, f"the checkpoint of step {grant.step} has not the shared state of that step")

    def on_transfer(self, source: RankProcess, request: Request, before: int) -> None:
        if source.tx.shared != before or not source.tx.clean:
            self._broken(2, f"{source} changed while {request.receiver} read its state")

    def on_joined(self, p: RankProcess) -> None:
        generation = p.membership.generation
        for peer in p.membership.peers:
            if peer.membership.generation > generation and not p.newer_than(generation):
                return  # it has left already; we shall hear of it
        if any(peer.rank != r for r, peer in zip(p.members, p.membership.peers, strict=True)):
            self._broken(1, f"{p} joined a group of generation {generation} with ranks in wrong places")

    def on_store(self, agent: SimAgent, q: StoreRequest, answered: bool) -> None:
        orders = agent.logic.orders
        if not answered or orders is None or q.generation >= orders.generation:
            return
        if not any(o.want == "pause" and o.soft for o in orders.ranks):  # else all end their step first
            self._broken(1, f"the store of generation {q.generation} answers in generation {orders.generation}")

    def on_replay(self, p: RankProcess, log: list[bytes]) -> None:
        """A replacement is told what came out of the collectives before the first step."""
        want = 0
        for _ in range(self.world.scenario.world_size):
            want = mix(want, mix(first_shared(), 0))
        if log and log[0] and log[0] != str(want).encode():
            self._broken(2, f"{p} is told another result of a collective in set-up")
        if not (log and log[0]) and not any(f.kind in NODES for f in self.world.fired):
            self._broken(2, f"{p} is not told the result of a collective in set-up")

    def on_report(self, p: RankProcess, stage: Stage, generation: int) -> None:
        if stage is Stage.FORMED:
            self._formed = max(self._formed, generation)
            other = self._members_of.setdefault((generation, p.rank), p)
            if other is not p:
                self._broken(1, f"{p} and {other} are both members of generation {generation}")
        elif stage is Stage.PAUSED and not self._rank_faults():
            self._broken(5, f"{p} was paused although nothing happened to any rank")
        elif stage is Stage.LEFT:
            self.on_good_end(p)  # how its process goes from here on makes no difference any more

    def on_good_end(self, p: RankProcess) -> None:
        """`p` is through its script."""
        if p.tx.step != self.world.scenario.last_step:
            self._broken(2, f"{p} ended well after {p.tx.step} steps")
        self.on_exit_0(p)

    def on_exit_0(self, p: RankProcess) -> None:
        """`p` ends as if all were well. It is, where it has just told its user that a step counts, and holds that."""
        ends = self._good_ends.setdefault(p.attempt, {})
        if p.holds and p.scope is Scope.OUTSIDE:
            self._check_state(p, "at its end")
            ends[p.rank] = p.tx.step
        elif p.scope is Scope.SETUP and not p.stand_in:
            ends[p.rank] = -1  # it never came to its loop

    # ------------------------------------------------------------------------------------------ 5: control plane

    def _rank_faults(self) -> int:
        return sum(f.kind not in CONTROL and f.kind != "kill-spare" for f in self.world.fired)

    # ------------------------------------------------------------------------------------------ 6 and 2: the manager

    def on_start(self, agent: SimAgent, e: StartProcess) -> None:
        if self.world.agent_of(e.rank) is not agent:
            return  # it only prepares to stand in: counted when the place is its own
        if e.incarnation and (self._job is None or agent.logic.term >= self._job.term):
            self._started[e.rank] = max(e.incarnation, self._started.get(e.rank, 0))

    def on_orders(self, agent: SimAgent, orders: Orders) -> None:
        """An agent follows these orders."""
        last = self._accepted.get(agent.index, (0, 0))
        now = (orders.term, orders.generation)
        if orders.term < last[0] or orders.generation < last[1]:
            self._broken(1, f"{agent} followed {last} and now follows the older {now}")
        self._accepted[agent.index] = now
        seat = self._followed.setdefault((agent.index, orders.term), orders.seat)
        if seat != orders.seat:
            self._broken(1, f"{agent} follows {orders.seat} and {seat}, both of term {orders.term}")
        if orders.node < 0 and any(p.alive and not p.killed and not p.spare for p in agent.logic.processes.values()):
            self._broken(1, f"{agent} has no place and keeps its ranks")

    def on_any_job(self, manager: SimManager, job: Job) -> None:
        """A manager changed its mind, in office or behind a cut."""
        held = [m.id for m in job.places if m is not None]
        if len(set(held)) < len(held):
            self._broken(1, f"{manager} gives two places to one agent: {held}")
        news = manager.decided != (job.phase, job.generation)
        manager.decided = (job.phase, job.generation)
        self._moved = max(self._moved, job.moved)
        if not manager.logic._granted or not news:
            return  # nobody does yet what it says, or all know it
        if job.phase is Phase.FORMING:
            how = (tuple(held), job.incarnations, job.agreement)
            if self._past_pausing.setdefault(job.generation, how) != how:
                self._broken(1, f"{manager} forms generation {job.generation} another way than somebody else has")
        if job.phase is Phase.RUNNING:
            if (job.generation, job.term) < self._ran:
                self._broken(1, f"{manager} runs generation {job.generation}, {self._ran} (generation, term) had run")
            self._ran = (job.generation, job.term)

    def on_job(self, manager: SimManager, job: Job) -> None:
        """The manager in office changed its mind."""
        old, self._job = self._job, job
        if old is None:
            return
        if job.term < old.term:
            self._broken(1, f"a manager of term {job.term} is in office after one of term {old.term}")
        if job.term == old.term:
            self._on_change(old, job)
        elif job.restarts_used < (spent := self._spent() - self._moved):
            self._broken(6, f"a new manager counts {job.restarts_used} restarts, {spent} were spent")
        ordered = job.attempt + sum(i - 1 - job.attempt for i in job.incarnations)
        if job.restarts_used + job.moved != ordered:
            self._broken(6, f"{job.restarts_used} restarts and {job.moved} moves counted, {ordered} ordered")

    def _spent(self) -> int:
        """Restarts that really happened: processes started beyond the first, a restart of everybody counting once."""
        s = self.world.scenario
        incarnations = [self._started.get(r, 1) for r in range(s.world_size)]
        attempts = max((p.attempt for a in self.world.agents for p in a.children.values()), default=0)
        return attempts + sum(max(0, i - 1 - attempts) for i in incarnations)

    def _on_change(self, old: Job, job: Job) -> None:
        if job.restarts_used < old.restarts_used:
            self._broken(6, f"the count of restarts went from {old.restarts_used} to {job.restarts_used}")
        if job.generation < old.generation:
            self._broken(1, f"the generation went from {old.generation} to {job.generation}")
        if any(new < was for new, was in zip(job.incarnations, old.incarnations, strict=True)):
            self._broken(6, f"incarnations went from {old.incarnations} to {job.incarnations}")
        if job.phase is Phase.FORMING and old.phase is Phase.PAUSING:
            self.grown += bool(job.joining)
            self.shrunk += bool(job.absent) and not job.joining
        if job.phase is Phase.FORMING and job.absent and nodes_of(job) < self.world.scenario.min_nodes:
            self._broken(3, f"the job goes on with {nodes_of(job)} nodes")
        if job.incidents > old.incidents and not self._rank_faults():
            self._broken(5, "an incident was opened although nothing happened to any rank")
        if job.incident is not None and old.incident is not job.incident:
            self._check_blame(job, old)
        if job.agreement is not None and job.agreement != old.agreement:
            self._check_agreement(job)
        if job.phase is Phase.FAILED and old.phase is not Phase.FAILED:
            self._check_failure(job)
        if job.attempt > old.attempt:
            self.short += bool(job.absent)
            self._check_restart(old, job)
        if job.agreement is not None and Part.LOAD in job.agreement.parts.values() and not old.begun:
            self._check_load(job)

    def _check_blame(self, job: Job, old: Job) -> None:
        """Nobody is taken for hung where nothing was stopped, hung, cut off or lost."""
        assert job.incident is not None
        known = set(old.incident.faults) if old.incident is not None else set()
        blamed = [f for f in job.incident.faults if f not in known and f.kind in ("hang", "stall")]
        if blamed and not self.world.scenario.loss and not any(f.kind in SLOWING for f in self.world.fired):
            self._broken(3, f"rank {blamed[0].rank} is blamed ({blamed[0].text}) although nothing was in its way")

    def _check_agreement(self, job: Job) -> None:
        assert job.agreement is not None
        for p in self._copies.members(job):
            if p.committed > job.agreement.step and not p.tx.was_damaged:
                self._broken(2, f"{p} committed {p.committed} steps, the job goes on at {job.agreement.step}")

    def _check_restart(self, old: Job, job: Job) -> None:
        """Everybody starts again: only right when nothing could be kept, or nothing is allowed to be."""
        if not self._attempt_committed.get(old.attempt, 0):
            return
        s = self.world.scenario
        why = self._last_why()
        judged = " ".join(old.incident.why) if old.incident is not None else ""
        coming = (*old.joining, *old.arriving)
        if any(p.scope is Scope.SETUP for p in self._copies.members(old) if p.rank not in coming):
            return
        all_policies = {Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER} <= set(s.policies)
        if not all_policies and "configured" in judged + why:
            return
        keeps = Policy.DUMP in s.policies or (Policy.RETRY in s.policies and None not in old.places)
        if "would be given up, and nobody else" in judged + why and not keeps:
            return  # neither in place nor elsewhere: this ladder has no cheaper way
        if re.search("process restarts? is used up", why) and s.max_restarts < 100:
            return
        if "times with no progress" in why and len(self.world.fired) >= IDENTICAL_LIMIT:
            return
        if "did not come up" in why and any(p.stand_in and p.stuck for p in self._copies.members(old)):
            return
        enough = s.elastic and nodes_of(old) >= s.min_nodes
        if (re.search("no node took the place|still only", why) and not enough) or self._cut_lately():
            return
        left = self._copies.complete(old)
        if left >= 0 and left <= self._copies.saved(job):
            self._kept = left
            return
        if old.phase is Phase.SAVING and (self.world.scenario.disk_full or self._slow()):
            return
        if left >= 0:
            self._broken(2, f"everybody starts again ({why}) although step {left} could be kept")

    def _cut_lately(self) -> bool:
        """Who is behind a cut, or has just come back, may hold what nobody else knows of."""
        cuts = [f for f in self.world.fired if f.kind == "cut"]
        return bool(cuts) and self.world.now < self.world.last_trouble + 20.0

    def _slow(self) -> bool:
        return any(f.kind in SLOWING for f in self.world.fired)

    def _check_load(self, job: Job) -> None:
        assert job.agreement is not None
        if job.agreement.step < self._kept:
            self._broken(2, f"everybody begins at step {job.agreement.step} although step {self._kept} was kept")

    def _last_why(self) -> str:
        manager = self.world.manager
        if manager is None:
            return ""
        job = manager.logic.job
        if job is not None and job.incident is not None:  # it stays open until everybody trains again
            return job.incident.why[-1] if job.incident.why else ""
        return manager.logic.closed[-1].why[-1] if manager.logic.closed else ""

    def _check_failure(self, job: Job) -> None:
        if not job.reason:
            self._broken(3, "the job failed without a reason")
        fired, s = self.world.fired, self.world.scenario
        if any(f.always for f in fired) or not s.asks:
            return
        if "used up" in job.reason and s.max_restarts < 100:
            return
        if "times with no progress" in job.reason and self._rank_faults() >= IDENTICAL_LIMIT:
            return
        if "same error" in job.reason and sum(f.kind == "raise-once" for f in fired) >= 2:
            return
        if ("NoQuorum" in job.reason and self._may_lack_quorum()) or self._cut_lately():
            return
        missing = "no node took the place" in job.reason and any(f.kind in NODES for f in fired)
        if missing and self._copies.too_few(job, self._rank_faults()):
            return
        self._broken(3, f"the job failed although it need not have: {job.reason}")

    def _may_lack_quorum(self) -> bool:
        """Where nobody can tell the dead from the silent, half of the nodes are not enough."""
        return any(f.kind in NODES for f in self.world.fired)

    # ------------------------------------------------------------------------------------------ 3: every fault ends

    def endless(self) -> None:
        w = self.world
        phase = self._job.phase.value if self._job is not None else "no job"
        ranks = "; ".join(
            f"{p}: {p.doing()}" for r in range(w.scenario.world_size) if (p := w.process_of(r)) is not None
        )
        self._broken(3, f"no end {w.now - w.last_trouble:.0f} s after the last fault, phase {phase}; {ranks}")

    def on_done(self, agent: SimAgent, orders: Orders) -> None:
        self._verdicts[agent.index] = (orders.term, orders.exit_code)
        cut_off = [a.index for a in self.world.agents if self.world.network.crossed(a.index, agent.index)]
        places = self._job.places if self._job is not None else ()
        replaced = [a.index for a in self.world.agents if places and index_of(places, a.member.id) < 0]
        if not self._excused:
            self._excused.update(cut_off, replaced, {-1})  # the word need not reach them before all others are gone

    def on_given_up(self, agent: SimAgent) -> None:
        """Right where those who could decide are gone for good, or where the job has ended without this agent."""
        w, job = self.world, self._job
        if agent.logic.record:
            self.given_up.add(agent.member.id)
        over = job is not None and job.phase in OVER  # it came too late
        if not over and not any(f.kind in NODES for f in w.fired):
            self._broken(3, f"{agent} finds no manager although no node was lost or cut off")
        if job is None or over or self._cut_lately() or not agent.logic.record:
            return
        # Who has never been told anything knows of no other door than the first.
        there = frozenset(a.member.id for a in w.agents if a.running and a.logic.record) | self.given_up
        if vote(job.voters, Outlook(following=there)).enough:
            self._broken(3, f"{agent} finds no manager although a majority is there")

    @property
    def last_term(self) -> int:
        """Of the manager that was last seen in office."""
        return self._job.term if self._job is not None else 0

    @property
    def ending(self) -> str:
        """How it ended, in the eyes of those who were there to the last."""
        codes = {code for agent, (_, code) in self._verdicts.items() if agent not in self._excused}
        if codes:
            return "Succeeded" if codes == {0} else "Failed"
        return "NoQuorum" if self.given_up else "Lost"  # with all its nodes

    def at_the_end(self) -> None:
        s = self.world.scenario
        codes = {code for agent, (_, code) in self._verdicts.items() if agent not in self._excused}
        if len(codes) > 1:
            self._broken(3, f"agents ended with different verdicts: {self._verdicts}")
        if codes == {0} and s.library:
            ends = self._good_ends.get(max(self._good_ends, default=-1), {})
            expected = set(self._job.ranks) if self._job is not None and s.elastic else set(range(s.world_size))
            if not set(ends) >= expected:
                self._broken(2, "the job succeeded although not every rank came to its end")
            if len({step for rank, step in ends.items() if rank in expected}) > 1:
                self._broken(2, f"the job succeeded although its ranks ended after different steps: {ends}")
        if s.control_only and self.ending != "Succeeded":
            self._broken(5, "nothing happened to any rank, yet the job failed")
