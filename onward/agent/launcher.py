"""`onward run` as a process: sockets, children and a clock around `AgentLogic`. Never imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from onward.agent import control, evidence
from onward.agent.birth import OTHER_PYTHON, Births
from onward.agent.busy import Lateness, RunQueue
from onward.agent.chaos import OWN_KINDS
from onward.agent.conditions import Conditions
from onward.agent.courier import Courier
from onward.agent.desk import Desk
from onward.agent.effects import AnswerPeer, Effect, FetchLocal, KillProcess, Say, SendPeer, SendRank, StartProcess
from onward.agent.facts import Process
from onward.agent.helpers import Guard, OwnManager
from onward.agent.logic import AgentLogic
from onward.agent.logs import Follower, tail
from onward.agent.meeting import meet
from onward.agent.obituary import Obituaries
from onward.agent.observer import Diary, JobView, Observer, Outcome, RankView
from onward.agent.office import Office
from onward.agent.peers import Peers
from onward.agent.places import Places
from onward.agent.processes import Child, become_reaper, kill_tree, reap_orphans
from onward.agent.saver import Saver
from onward.agent.saving import DropPart, PublishCheckpoint, UseDirectory, WriteCheckpoint
from onward.agent.settings import AgentSettings, RunSettings, Streams
from onward.agent.tally import Tally
from onward.agent.vault import Vault
from onward.agent.warmth import WarmParent
from onward.agent.witness import Witness
from onward.core.facts import Progress
from onward.core.health import own_idle_s
from onward.core.incident import Incident
from onward.core.membership import facts_s
from onward.core.policy import Policy
from onward.errors import HungUp, OnwardError, WireError
from onward.log import get_logger
from onward.wire import page as pages
from onward.wire.frames import accept_peer, decode, pack, read_frame
from onward.wire.messages import (
    Beat,
    CaptureStacks,
    ControlRequest,
    DieAfter,
    FaultAnswer,
    Hello,
    IncidentNote,
    Injected,
    Injection,
    Note,
    Orders,
    PeerReply,
    Refused,
    encoder,
    first_word,
    from_rank,
)

log = get_logger("onward.agent")
TICK_S = 0.05
GREETING_S = 5.0
FAREWELL_S = 5.0  # for a manager that we host to tell the other nodes how the job ended
ONE_SIGNAL_S = 0.5
QUORUM_S = 1800.0  # a node that no manager can take care of for so long gives up, as the manager itself does
WRONG_USAGE = 2  # the exit code of a wrong command line: here one that does not fit the job
LAST_SAVE_S = 600.0  # what a job that has succeeded waits for its last checkpoint
HINT = (
    "no rank has called onward.init(), so a failure restarts all of them from the beginning; for recovery at the step "
    "that failed add: run = onward.init(), run.protect(model=model, optimizer=optimizer), and train in "
    "`for step in run.steps(n): with step:`"
)


class Launcher:
    """One node's part of a job, from the first process to the last."""

    def __init__(self, settings: RunSettings, observer: Observer, injections: tuple[Injection, ...] = ()) -> None:
        self.settings = settings
        self.observer = observer
        self._injections = injections
        self._meeting = meet(settings)
        self._token = self._meeting.token
        self._children: dict[int, Child] = {}  # process number -> child
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._followers: dict[int, list[Follower]] = {}
        self._pages: dict[int, pages.Page] = {}
        self._queues: dict[int, RunQueue] = {}
        self._lateness = Lateness()
        self._tasks: set[asyncio.Task[None]] = set()
        self._incidents: list[Incident] = []
        self._open_incident: Incident | None = None
        self._evidence: dict[tuple[int, int], str] = {}
        self._warm: WarmParent | None = None
        self._stop_signal = 0
        self._facts_s = facts_s(settings.nodes)
        self._stopped_at = 0.0
        self._strangers: set[int] = set()  # children that we do not know yet
        self._sent_at = 0.0
        self._started_at = time.monotonic()
        self._done = asyncio.Event()
        self._top_step = 0
        self._total_steps = 0
        self._loss: float | None = None
        self._control_fd = -1
        self._obituaries = Obituaries()
        self._tally = Tally()
        self._desk = Desk(self)
        self._conditions = Conditions()
        self.courier = Courier(lambda message: self._office.send(message))
        self.witness = Witness()
        for injection in injections:
            self.witness.expect(injection)
        self._hinted = False
        self._heard: set[str] = set()  # loud notes, said once
        self.refused = 0  # connections that were not a rank's

    # ------------------------------------------------------------------------------------------ life

    async def run(self) -> Outcome:
        """Run the job to its end and leave nothing behind."""
        s = self.settings
        become_reaper()
        self.places = Places(s.log_dir, self.name)
        self.log_dir = self.places.log_dir
        self.observer = Diary(self.observer, self.log_dir / "events.log")
        self._make_logic()
        self._guard = Guard(self.places.run_dir)
        self._births = Births(s, self.places, self._token)
        self._manager = OwnManager(s, self._meeting, self.log_dir, self.observer.note)
        self._office = Office(self._token, self._meeting.doors, self._on_manager, self._send_facts)
        self._peers = Peers(self.logic.me, self._token, self.logic.keeper, self._on_peer, self._on_peer_reply)
        try:
            self._handle_signals()
            server = await asyncio.start_unix_server(self._on_rank_connection, path=self.places.socket)
            if self._meeting.peer_socket is not None:
                await self._peers.listen(self._meeting.peer_socket)
            self._publish()
            if s.warm and not os.environ.get(OTHER_PYTHON):
                self._warm = WarmParent(s, {**os.environ, "OMP_NUM_THREADS": "1"}, self.observer.note)
                self._warm.start()
            self._spawn(self._office.run())
            self._spawn(self._tick())
            await self._done.wait()
            server.close()
            return self._outcome()
        finally:
            await self._clean_up()

    @property
    def name(self) -> str:
        """What people call the job."""
        return self.settings.job_name or Path(self.settings.script).stem or "job"

    def _publish(self) -> None:
        entry = control.ControlFile(
            pid=os.getpid(),
            job=self.name,
            socket=self.places.socket,
            token=self._token.hex(),
            log_dir=str(self.log_dir),
            started_at=time.time(),
            script=self.settings.script,
            world_size=self.settings.nproc * self.settings.nodes,
        )
        self._control_fd = control.publish(self.places.run_dir, entry)

    def _make_logic(self) -> None:
        s = self.settings
        dumps = s.dump_dir if s.dump_dir is not None else self.log_dir / "dump"
        self._vault = Vault(self.places.memory_dir, self.name, s.nproc * s.nodes, dumps.absolute())
        self.logic = AgentLogic(
            AgentSettings(
                member=self._meeting.member,
                local_ranks=s.nproc,
                spares=s.spares,
                elastic=Policy.ELASTIC in s.policies,
                retry_on=s.retry_on,
                injections=self._injections,
                memory_dir=str(self.places.memory_dir),
                dump_dir=str(s.dump_dir.absolute()) if s.dump_dir is not None else "",
            ),
            self.places.of,
            self.places.local_steps,
            self._vault.steps_in_memory,
            self.places.begun,
        )
        self._saver = Saver(self.logic, self._vault, self.places, self._apply, self._say)
        self._saver.after = self._check_end

    def _handle_signals(self) -> None:
        """Not with the handlers of the loop: closing, it takes them back, and a late signal would kill us then."""
        loop = asyncio.get_running_loop()

        def received(number: int, _frame: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._on_signal, number)

        for name in {*self.settings.signals, "SIGINT", "SIGTERM"}:
            number = getattr(signal, name, None)
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started with nohup: who logs out does not mean us
            if number is not None:
                signal.signal(number, received)

    def _on_signal(self, number: int) -> None:
        if self._stop_signal:
            if time.monotonic() - self._stopped_at < ONE_SIGNAL_S:
                return  # Ctrl-C reaches us from the terminal and again from a parent that passes it on
            self.observer.note("a second signal: ending everything now")
            for child in self._children.values():
                child.signal(signal.SIGKILL)
            return
        self._stop_signal, self._stopped_at = number, time.monotonic()
        self._manager.stopping = True
        name, grace = signal.Signals(number).name, self.settings.grace_s
        others = self.settings.several and self.logic.node >= 0
        if not self._can_save() and not others:
            self.observer.note(f"{name} received; ending all ranks within {grace:g} s")
            return self._end_all()
        first = "leaving the job to the other nodes" if others else "saving the last step"
        self.observer.note(f"{name} received; {first}, then ending all ranks, within {grace:g} s")
        self.logic.leaving = self.logic.changed = True
        self._apply([])
        asyncio.get_running_loop().call_later(max(grace - 2.0, grace * 0.75), self._end_all)

    def _can_save(self) -> bool:
        """Whether a dump is allowed and has a place where the next start will look for it."""
        placed = self._vault.named or self.settings.dump_dir is not None
        attached = any(self.logic.processes[n].attached for n in self.logic.current.values())
        return Policy.DUMP in self.settings.policies and placed and attached

    def _end_all(self) -> None:
        if not self.logic.stopping:
            self._manager.retire()
            self._apply(self.logic.stop())
            self._check_end()

    async def _clean_up(self) -> None:
        self._office.leave()
        for task in list(self._tasks):
            task.cancel()
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for number in list(self._children):
            self._sweep(number)
        if self._warm is not None:
            self._warm.stop()
        if self.settings.several and not self._stop_signal:
            await self._manager.farewell(FAREWELL_S)
        self._manager.stop()
        self._peers.close()
        self._guard.stop()
        await asyncio.sleep(0.01)
        self._vault.close()
        self.places.remove()
        if self._control_fd >= 0:
            os.close(self._control_fd)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("internal error: %r", task.exception(), exc_info=task.exception())
            self._crash = task.exception()
            self._done.set()

    _crash: BaseException | None = None

    # ------------------------------------------------------------------------------------------ manager

    def _on_manager(self, message: object) -> None:
        match message:
            case Orders():
                self._say_what_is_missed(message)
                self._vault.settle(message.run, message.node == 0)
                for order in message.ranks:
                    if order.want == "form" and order.form is not None and order.generation == message.generation:
                        self._tally.agreed(order.form.step)
                self._say_where_it_begins(message)
                self._apply(self.logic.on_orders(message))
                if self.logic.orders is message:
                    self._say_where_we_stand(message.node)
                    for text in self._conditions.update(message.conditions):
                        self.observer.note(text)
                if self._stop_signal and (message.phase == "Stopped" or message.node < 0):
                    self._end_all()  # all is saved, or the others go on without us
                self._check_end()
                self._say_what_is_awaited(message.waiting)
            case Beat():
                self._say_what_is_awaited(message.waiting)
            case Note():
                self._on_note(message)
            case Refused():
                self._on_refused(message.why)
            case IncidentNote():
                self._on_incident(message.incident, message.open)
            case FaultAnswer():
                self.courier.on_answer(message)
            case CaptureStacks():
                self._spawn(self._capture(message))

    def _on_note(self, note: Note) -> None:
        if not note.loud:
            self.observer.detail(note.text)
        elif note.text not in self._heard:
            self._heard.add(note.text)
            self.observer.note(note.text)

    def _on_refused(self, why: str) -> None:
        """Who never had a part in the job ends. Who has one goes on with it: its ranks are worth more than a flag."""
        if self.logic.orders is None and not self._gave_up:
            self._gave_up = f"the job's manager has refused this node: {why}"
            self._exit_code = WRONG_USAGE
            self.observer.note(self._gave_up)
            self._done.set()

    def _say_what_is_missed(self, orders: Orders) -> None:
        attached = any(self.logic.processes[n].attached for n in self.logic.current.values())
        if orders.attempt > 0 and not attached and not self._hinted:
            self._hinted = True
            self.observer.note(HINT)

    def _say_where_we_stand(self, node: int) -> None:
        """A node that stands by has nothing else to show that it is of use."""
        if node < 0 and self._stands_at != node and not self._stop_signal:
            name = self.logic.settings.member.name
            self.observer.note(f"standing by as {name}; takes the place of a node that is lost")
        elif self._stands_at is not None and self._stands_at < 0 <= node:
            ranks = ", ".join(map(str, self.logic.local_ranks))
            self.observer.note(f"taking the place of node {node}: starting rank {ranks}")
        self._stands_at = node

    _stands_at: int | None = None  # the place in the last orders

    def _say_where_it_begins(self, orders: Orders) -> None:
        loads = {o.form.step for o in orders.ranks if o.form is not None and o.form.part == "load"}
        if loads and orders.attempt == 0 and self._resumed_in != orders.generation:
            self._resumed_in = orders.generation
            self.observer.note(f"resuming at step {max(loads)}, from {self._vault.directory}")

    _resumed_in = -1

    def _say_what_is_awaited(self, waiting: str) -> None:
        if waiting != self._awaited and waiting:
            self.observer.note(f"waiting for {waiting}" if not waiting.startswith("NoQuorum") else waiting)
        self._awaited = waiting

    _awaited = ""

    def _on_incident(self, incident: Incident, is_open: bool) -> None:
        if any(i.number == incident.number for i in self._incidents):
            return  # a new manager tells the latest once more
        self.witness.faulted(incident.faults)
        who = [(f.rank, f.incarnation) for f in incident.faults]
        seen = [self._evidence[key] for key in dict.fromkeys(who) if key in self._evidence]
        if seen:
            incident = replace(incident, evidence="\n".join(seen))
        self._open_incident = incident if is_open else None
        self._count()
        if not is_open:
            self._incidents.append(incident)
            self._tally.closed(incident.total_ms / 1000.0, time.monotonic())
            with contextlib.suppress(OSError), open(self.log_dir / "incidents.jsonl", "ab") as f:
                f.write(msgspec.json.encode(incident) + b"\n")
        self.observer.incident(incident, is_open)

    async def _capture(self, want: CaptureStacks) -> None:
        number = self.logic.current.get(want.rank)
        p = self.logic.processes.get(number) if number is not None else None
        if p is None or p.incarnation != want.incarnation or not p.pid:
            return
        text = await evidence.stacks(p.pid)
        self._evidence[(want.rank, want.incarnation)] = text
        path = self.log_dir / f"rank{want.rank}.{p.number:03d}.stacks.txt"
        with contextlib.suppress(OSError):
            path.write_text(text)

    def _send_facts(self) -> None:
        if self._office.open:
            self._sent_at = time.monotonic()
            self.logic.lonely_s = self._office.lonely_s
            self._office.send(self.logic.facts(self._sent_at, told=self._office.in_office))

    def _on_peer(self, agent: str, message: object) -> None:
        self._apply(self.logic.on_peer(agent, message))

    def _on_peer_reply(self, message: PeerReply) -> None:
        self._apply(self.logic.on_peer_reply(message))

    # ------------------------------------------------------------------------------------------ ranks

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartProcess():
                    self._spawn(self._start(effect))
                case KillProcess():
                    self._kill(effect)
                case SendRank():
                    writer = self._writers.get(effect.process)
                    if writer is not None:
                        with contextlib.suppress(ConnectionError, RuntimeError):
                            writer.write(pack(encoder, effect.message))
                case FetchLocal():
                    self._spawn(self._fetch_local(effect))
                case SendPeer():
                    self._peers.send(effect.peer, effect.message)
                case AnswerPeer():
                    self._peers.answer(effect.agent, effect.message)
                case Say():
                    say = self.observer.detail if self._open_incident is not None else self.observer.note
                    say(effect.text)
                case UseDirectory() | WriteCheckpoint() | PublishCheckpoint() | DropPart():
                    self._spawn(self._saver.carry_out(effect))
        if self.logic.changed:
            self._send_facts()

    def _say(self, text: str) -> None:
        self.observer.note(text)

    def _kill(self, effect: KillProcess) -> None:
        child = self._children.get(effect.process)
        if child is None:
            return
        if not effect.gently:
            child.signal(signal.SIGKILL)
            return
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)
        grace = self.settings.grace_s if self.logic.stopping else min(self.settings.grace_s, 2.0)
        asyncio.get_running_loop().call_later(grace, child.signal, signal.SIGKILL)

    async def _start(self, effect: StartProcess) -> None:
        p = self.logic.processes.get(effect.process)
        if p is None:
            return
        if effect.kept_at:
            await self._take_over(p, effect.kept_at)
        orders = self.logic.orders
        try:
            pid = await self._births.start(p, self._warm, self.logic.node, orders.master if orders else "")
            self._pages[p.number] = pages.Page(self.places.of(p)[0])
        except OSError as e:
            self.observer.note(f"rank {p.rank}: could not start a process: {e}")
            self._apply(self.logic.on_exit(p.number, 71))
            return
        self._follow(p, *self.places.logs(p))
        self._queues[p.number] = RunQueue(pid)
        self.logic.on_started(p.number, pid)
        self._guard.add(pid, self.places.mark(p.number))
        number = p.number
        self._children[number] = Child(pid, lambda code: self._on_exit(number, code))
        if p.killed:
            self._children[number].signal(signal.SIGKILL)
        self._apply([])

    async def _fetch_local(self, effect: FetchLocal) -> None:
        p = self.logic.processes.get(effect.process)
        if p is not None and p.alive:
            await self._take_over(p, effect.kept_at)
            self.logic.changed = True
            self._apply([])

    async def _take_over(self, p: Process, kept_at: str) -> None:
        """Fetch what another node kept for a rank whose own node is lost."""
        try:
            kept = await self._peers.fetch(kept_at, p.rank, p.attempt)
        except WireError as e:
            self.observer.note(f"rank {p.rank}: its local state could not be had: {e}")
            return
        self.places.put_local(p, kept.slots)
        self.logic.take_over(p.rank, kept.log)

    def _on_exit(self, number: int, code: int) -> None:
        self._sweep(number)
        p = self.logic.processes.get(number)
        for follower in self._followers.pop(number, []):
            follower.poll(last=True)
        self._guard.drop(self._children[number].pid)
        self._writers.pop(number, None)
        if p is not None and p.number in self._pages:
            self._read_page(p)
        self.witness.exited(self._children[number].pid, code)
        if p is not None and not p.spare:
            local_rank = p.rank - self.logic.first_rank
            self._obituaries.dead(p, local_rank, code, self.places.logs(p), self.places.error_file(p))
        self._apply(self.logic.on_exit(number, code))
        self._children.pop(number, None)
        self._pages.pop(number, None)
        self._queues.pop(number, None)
        self._check_end()

    def _sweep(self, number: int) -> None:
        child = self._children.get(number)
        if child is not None:
            kill_tree(child.pid, self.places.mark(number))

    async def _on_rank_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        try:
            await accept_peer(reader, writer, self._token, GREETING_S)
            message: object = decode(first_word, await read_frame(reader))
            if isinstance(message, ControlRequest):
                return await self._desk.serve(message, reader, writer)
            assert isinstance(message, Hello)
            known = self.logic.processes.get(message.process)
            if known is None or not known.alive or message.process in self._writers:
                raise WireError(f"process {message.process} is no process of this job, or no more, or is here already")
            number, pid = message.process, message.pid
            self._writers[number] = writer
            while True:
                if isinstance(message, Injected):
                    self._on_injected(message, pid)
                self._apply(self.logic.on_rank(number, message))
                message = decode(from_rank, await read_frame(reader))
        except WireError as e:
            if not number:
                self.refused += 1
                level = logging.INFO if isinstance(e, HungUp) else logging.WARNING
                log.log(level, "a connection to the agent was refused: %s", e)
        finally:
            writer.close()

    def _on_injected(self, message: Injected, pid: int) -> None:
        """A rank announces an injection. Heeded from a dead one too: news of its death can overtake its last word."""
        self.logic.injections = [i for i in self.logic.injections if i.id != message.id]
        self.witness.announced(message.id, pid)

    def _is_ours(self, i: Injection) -> bool:
        """Every node is given the same faults; each causes those of its own ranks and processes."""
        return i.rank in self.logic.local_ranks if i.rank >= 0 else i.node == self.logic.node

    def inject(self, injection: Injection) -> None:
        """Take up an injection while the job runs."""
        self._apply(self.logic.inject(injection))

    def signal_rank(self, rank: int, number: int, injection: int) -> None:
        """Carry out an injection from the outside, as a signal."""
        child = self._children.get(self.logic.current.get(rank, -1))
        if child is not None:
            self.witness.announced(injection, child.pid)
            child.signal(number)

    # ------------------------------------------------------------------------------------------ watching

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.logic.late_s = self._lateness.see(now - due, now)
            for p in list(self.logic.processes.values()):
                if p.number in self._pages and p.alive:
                    self._read_page(p)
            for followers in self._followers.values():
                for f in followers:
                    f.poll()
            self._apply(self.logic.want_spares(self._room_for_spare))
            self._mind_the_manager()
            self._own_chaos()
            self.witness.look()
            self._count()
            if self.logic.changed or time.monotonic() - self._sent_at >= self._facts_s:
                self._send_facts()
            known = {c.pid for c in self._children.values()} | {self._manager.pid}
            known |= {self._guard.pid, self._warm.pid if self._warm else 0} | evidence.helpers
            if not self._births.under_way:
                self._strangers = reap_orphans(known, self._strangers)
            self.observer.status(self.view())

    def _mind_the_manager(self) -> None:
        """Whoever does not answer, or does not let us in, is not waited for in silence."""
        office = self._office
        if not office.open:
            self._manager.end_if_silent(time.monotonic() - office.lost_at)
        if office.turned_away == 3 and not self._told_away:
            self._told_away = True
            what = "it may have another token, or be no manager; its reason is in manager.log on its node"
            self.observer.note(f"the manager at {', '.join(office.doors).replace('|', ':')} does not let us in: {what}")
        waited = time.monotonic() - self._started_at
        if self.logic.orders is None and waited > self.settings.join_timeout_s and not self._gave_up:
            self._gave_up = f"the job did not begin within {self.settings.join_timeout_s:g} s (--join-timeout)"
            if self._awaited:
                self._gave_up += f"; it waited for {self._awaited}"
            self.observer.note(self._gave_up)
            self._done.set()
        if self.logic.orders is not None and office.lonely_s > QUORUM_S and not self.logic.stopping:
            what = self._awaited or "the job's manager does not answer"
            self._gave_up = f"no manager in office for {QUORUM_S:g} s ({what}); check that the other nodes are there"
            self.observer.note(f"{self._gave_up}; ending all ranks")
            self._end_all()

    _told_away = False
    _gave_up = ""
    _exit_code = 1  # of one that gave up

    def _room_for_spare(self) -> bool:
        """A spare may take what a rank takes; a machine that this would fill is better off without."""
        if time.monotonic() < self._no_room_until:
            return False
        pids = [c.pid for n, c in self._children.items() if n in self.logic.current.values()]
        try:
            needed = max((psutil.Process(pid).memory_info().rss for pid in pids[:1]), default=0)
        except psutil.Error:
            return False
        if psutil.virtual_memory().available > 2 * needed + (256 << 20):
            return True
        if not self._no_room_until:
            self.observer.note("not enough free memory for spares; a replacement will be forked when it is needed")
        self._no_room_until = time.monotonic() + 10.0
        return False

    _no_room_until = 0.0

    def _own_chaos(self) -> None:
        """Carry out the injected faults that are the launcher's to carry out."""
        for i in list(self.logic.injections):
            if i.at == "recovery" and (self._open_incident is None or self._top_step < i.step):
                continue
            if i.at == "recovery" and i.kind not in OWN_KINDS:
                if i.rank >= 0:
                    self.logic.injections.remove(i)
                    number = self.logic.current.get(i.rank)
                    if number in self._children:
                        self.witness.announced(i.id, self._children[number].pid)
                        self._children[number].signal(signal.SIGKILL)
            elif i.kind in OWN_KINDS and self._top_step >= i.step and i.node == self.logic.node:
                pids = self._own_pids(i.kind)
                if pids:
                    self.logic.injections.remove(i)
                    self.witness.announced(i.id, pids[0])
                if i.appends:
                    self._office.send(DieAfter(appends=i.appends, lose_journal=bool(i.lose)))
                    continue
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)

    def _own_pids(self, kind: str) -> list[int]:
        match kind:
            case "kill-manager":
                return [self._manager.pid]
            case "kill-agent":
                return [os.getpid()]
            case "kill-warm-parent":
                return [self._warm.pid] if self._warm is not None and self._warm.pid else []
            case _:
                return [p.pid for p in self.logic.processes.values() if p.spare and p.alive and p.pid]

    def _count(self) -> None:
        """Steps and processes of the ranks, as of now."""
        steps = []
        for rank, number in self.logic.current.items():
            p = self.logic.processes[number]
            if number in self._pages and p.alive:
                self._read_page(p)
            steps.append(p.progress.step)
            self._obituaries.alive(rank, p.pid)
        if len(steps) == self.logic.settings.local_ranks:
            self._tally.see(steps, self._open_incident is not None, time.monotonic())

    def _read_page(self, p: Process) -> None:
        page, now = self._pages[p.number], time.monotonic_ns()
        queue = self._queues.get(p.number)
        queued_s = queue.since(page.get("progress_ns")) if queue is not None else 0.0
        p.progress = Progress(
            step=page.get("step"),
            launched=page.get("launched"),
            pending_s=page.age_s("launched_ns", now),
            beat_s=page.age_s("beat_ns", now),
            idle_s=own_idle_s(page.age_s("progress_ns", now), queued_s),
            section=page.get("section") > 0,
            step_s=page.get("step_ns") / 1e9,
            gate=page.get("gate") > 0,
            compute_s=page.get("compute_ns") / 1e9,
            queued_s=page.get("queued_ns") / 1e9,
        )
        self._top_step = max(self._top_step, p.progress.step if not p.spare else 0)
        self._total_steps = max(self._total_steps, page.get("total"))

    def _follow(self, p: Process, out: Path, err: Path) -> None:
        s = self.settings
        local = p.rank - self.logic.first_rank
        files_only = s.redirects.get(local, Streams.NONE) & ~s.tee.get(local, Streams.NONE)
        shown = s.shown_ranks is None or local in s.shown_ranks
        followers = []
        for path, stream, flag in ((out, "out", Streams.OUT), (err, "err", Streams.ERR)):
            if shown and not files_only & flag:
                followers.append(Follower(path, self._emitter(p, stream)))
        self._followers[p.number] = followers

    def _emitter(self, p: Process, stream: str) -> Any:
        def emit(text: str) -> None:
            if not p.spare and (not p.stand_in or (p.report is not None and p.report.stage not in ("setup", "parked"))):
                self.observer.line(p.rank, stream, text)

        return emit

    def view(self) -> JobView:
        """The job as it stands, for people."""
        logic = self.logic
        now = time.monotonic()
        spares = {p.rank: p.pid for p in logic.processes.values() if p.spare and p.parked}
        ranks = []
        step_s = own_ms = 0.0
        for rank, number in sorted(logic.current.items()):
            p = logic.processes[number]
            began = "starting" if p.attached or not p.pid else "script"
            stage = "exited" if not p.alive else (p.report.stage if p.report else began)
            shown, spare = p.progress, spares.get(rank, 0)
            ranks.append(RankView(rank, p.pid, p.incarnation, stage, shown.step, spare, shown.compute_s))
            page = self._pages.get(number)
            if page is not None:
                step_s = max(step_s, p.progress.step_s)
                own_ms = max(own_ms, page.get("own_ns") / 1e6)
                if page.get("loss_set") and rank == min(logic.current):
                    self._loss = page.get_float("loss_bits")
        orders = logic.orders
        return JobView(
            phase=orders.phase if orders else "Starting",
            generation=orders.generation if orders else 0,
            step=self._tally.step,
            total_steps=self._total_steps,
            loss=self._loss,
            step_s=step_s,
            own_ms=own_ms,
            ranks=tuple(ranks),
            incidents=len(self._incidents) + (self._open_incident is not None),
            restarts=orders.attempt if orders else 0,
            library=any(logic.processes[n].attached for n in logic.current.values()),
            elapsed_s=now - self._started_at,
            name=self.name,
            log_dir=str(self.log_dir),
            steps_lost=self._tally.lost,
            goodput=self._tally.goodput(now),
            conditions=self._conditions.now,
        )

    def stories(self) -> tuple[list[Incident], bool]:
        """The incidents so far, and whether the last of them is still open."""
        now_open = [self._open_incident] if self._open_incident is not None else []
        return self._incidents + now_open, bool(now_open)

    # ------------------------------------------------------------------------------------------ the end

    def _check_end(self) -> None:
        alive = [p for p in self.logic.processes.values() if p.alive and not p.spare]
        if self.logic.stopping:
            # One that has no pid yet waits for the warm parent, which will not come to fork it.
            if not any(p.alive and p.pid for p in self.logic.processes.values()):
                self._done.set()
            return
        orders = self.logic.orders
        if orders is None or orders.exit_code is None or alive:
            return
        if orders.exit_code == 0 and self.logic.saving.under_way(publishes=self.logic.node == 0):
            if not self._waits_for_save:
                self._waits_for_save = True
                asyncio.get_running_loop().call_later(LAST_SAVE_S, self._done.set)
            return
        self._done.set()

    _waits_for_save = False

    def _say_how_to_go_on(self) -> None:
        """What a job that did not succeed has left on disk is of use only to those who know of it."""
        step = self._vault.newest()
        if step < 0:
            return
        same = "start it again with the same command"
        if not self._vault.named and self.settings.dump_dir is None:
            same = f"start it again with --dump-dir {self._vault.directory} added to the command"
        self.observer.note(f"to go on at step {step}, {same}")

    def _outcome(self) -> Outcome:
        if self._crash is not None:
            raise OnwardError(f"internal error in the launcher: {self._crash!r}") from self._crash
        self._count()
        view, orders = self.view(), self.logic.orders
        self.observer.status(view)
        for missing in self.witness.unseen(self._is_ours) if not self._stop_signal else []:
            self.observer.note(f"injected fault: {missing}")
        exit_code = orders.exit_code if orders is not None and orders.exit_code is not None else 1
        if exit_code or self._stop_signal:
            self._say_how_to_go_on()
        phase = orders.phase if orders is not None else "Failed"
        root = orders.root_cause if orders is not None else None
        if self._gave_up:
            exit_code, phase, root = self._exit_code, "Failed", None
        if self._stop_signal:
            exit_code = 128 + self._stop_signal
            phase = f"Stopped by {signal.Signals(self._stop_signal).name}"
            root = None
        root = self._obituaries.cause(root)
        ended = self._obituaries.of(root)
        return Outcome(
            exit_code=exit_code,
            phase=phase,
            reason=self._gave_up or (orders.reason if orders is not None else ""),
            root_cause=root,
            incidents=self._incidents,
            steps=view.step,
            steps_lost=view.steps_lost,
            goodput=view.goodput,
            elapsed_s=view.elapsed_s,
            loss=view.loss,
            name=self.name,
            script=self.settings.script,
            log_dir=view.log_dir,
            host=socket.gethostname(),
            root_process=ended,
            root_log=(tail(Path(ended.err), 200) or tail(Path(ended.out), 30)) if ended is not None else (),
            others=self._obituaries.others(ended),
            pids={rank: tuple(pids) for rank, pids in sorted(self._obituaries.pids.items())},
            chaos=self.witness.fired,
            attempts=orders.attempt + 1 if orders is not None else 0,
            conditions=[*self._conditions.over, *self._conditions.now],
            refused=self.refused,
            dropped=self.logic.dropped,
        )
