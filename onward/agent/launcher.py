"""`onward run` as a process: sockets, children and a clock around `AgentLogic`. Never imports torch."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from onward.agent import control
from onward.agent.birth import Births
from onward.agent.busy import Lateness
from onward.agent.courier import Courier
from onward.agent.crew import Crew
from onward.agent.desk import Desk
from onward.agent.effects import AnswerPeer, Effect, FetchLocal, KillProcess, Say, SendPeer, SendRank, StartProcess
from onward.agent.emissary import go_round
from onward.agent.helpers import OwnManager
from onward.agent.herald import Herald
from onward.agent.ledger import Ledger
from onward.agent.line import Line, Patience
from onward.agent.logic import AgentLogic
from onward.agent.meeting import meet, software
from onward.agent.observer import Diary, Observer, Outcome
from onward.agent.office import Office
from onward.agent.peers import Peers
from onward.agent.places import Places
from onward.agent.processes import become_reaper
from onward.agent.sabotage import Sabotage
from onward.agent.saver import Saver
from onward.agent.saving import DropPart, PublishCheckpoint, UseDirectory, WriteCheckpoint
from onward.agent.settings import AgentSettings, RunSettings
from onward.agent.vault import Vault
from onward.agent.witness import Witness
from onward.core.membership import facts_s
from onward.core.policy import Policy
from onward.errors import HungUp, OnwardError, WireError
from onward.log import get_logger, told_to
from onward.title import entitle
from onward.wire.control import ControlRequest, first_word
from onward.wire.frames import accept_peer, decode, read_frame
from onward.wire.identity import Identity, derived
from onward.wire.kernel import is_dying
from onward.wire.messages import (
    Beat,
    CaptureStacks,
    FaultAnswer,
    Hello,
    IncidentNote,
    Injection,
    Note,
    Orders,
    Refused,
)
from onward.wire.peers import PeerReply

log = get_logger("onward.agent")
TICK_S = 0.05
GREETING_S = 5.0
UNANSWERED_S = 4.0  # so long a node that comes first says nothing
FAREWELL_S = 5.0  # for a manager that we host to tell the other nodes how the job ended
ONE_SIGNAL_S = 0.5
QUORUM_S = 1800.0  # a node that no manager can take care of for so long gives up, as the manager itself does
WRONG_USAGE = 2  # the exit code of a wrong command line: here one that does not fit the job
MOST_REFUSED = 20  # connections of strangers that are told of one by one
LAST_SAVE_S = 600.0  # what a job that has succeeded waits for its last checkpoint


class Launcher:
    """One node's part of a job, from the first process to the last."""

    def __init__(self, settings: RunSettings, observer: Observer, injections: tuple[Injection, ...] = ()) -> None:
        self.settings = settings
        self.observer = observer
        self._injections = injections
        self._meeting = meet(settings, observer.note)
        self._identity = Identity(self._meeting.token)
        self._lateness = Lateness()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_signal = 0
        self._facts_s = facts_s(settings.nodes)
        self._stopped_at = 0.0
        self._sent_at = 0.0
        self._started_at = time.monotonic()
        self._done = asyncio.Event()
        self._control_fd = -1
        self._desk = Desk(self)
        self.courier = Courier(lambda message: self._office.send(message))
        self.witness = Witness()
        for injection in injections:
            self.witness.expect(injection)
        self.refused = 0  # connections that were not a rank's
        self._told_refused = 0
        self._told_away = self._told_nobody = False
        self._gave_up = ""
        self._exit_code = 1  # of one that gave up
        self._waits_for_save = False
        self._crash: BaseException | None = None

    # ------------------------------------------------------------------------------------------ life

    async def run(self) -> Outcome:
        """Run the job to its end and leave nothing behind."""
        s = self.settings
        become_reaper()
        entitle("onward", s.name)
        self.places = Places(s.log_dir, self.name)
        if self._meeting.outside:
            self._identity = derived(self._meeting.token, self.places.run_dir)
        self.log_dir = self.places.log_dir
        self.observer = Diary(self.observer, self.log_dir / "events.log")
        self._make_logic()
        self.ledger = Ledger(self.name, self.log_dir, self._started_at, self.logic, self.observer, self.witness)
        self._herald = Herald(self.observer, self.logic, self._vault, self.ledger.obituaries)
        self._make_crew()
        self._manager = OwnManager(s, self._meeting, self._identity, self.log_dir, self.observer.note)
        self._line = Line(self._meeting.doors, Patience(), joins=s.standby)
        self._office = Office(self._identity, self._line, self._on_manager, self._send_facts)
        self._sabotage = Sabotage(self.logic, self.crew, self.witness, lambda: self._manager.pid, self._office.send)
        try:
            with told_to(self.observer.note):
                return await self._live()
        finally:
            await self._clean_up()

    async def _live(self) -> Outcome:
        self._handle_signals()
        server = await asyncio.start_unix_server(self._on_connection, path=self.places.socket)
        if self._meeting.peer_socket is not None:
            self._peers.listen(self._meeting.peer_socket)
        self._publish()
        self.crew.warm_up()
        self._spawn(self._office.run())
        self._spawn(self._tick())
        if self.settings.several:
            self._spawn(go_round(self._identity, self._meeting.doors, self._known_doors))
        await self._done.wait()
        server.close()
        return self._outcome()

    @property
    def name(self) -> str:
        """What people call the job."""
        return self.settings.name

    def _publish(self) -> None:
        entry = control.ControlFile(
            pid=os.getpid(),
            job=self.name,
            socket=self.places.socket,
            token=self._identity.token.hex(),
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
                software=software() if s.several else "",
                memory_dir=str(self.places.memory_dir),
                dump_dir=str(s.dump_dir.absolute()) if s.dump_dir is not None else "",
            ),
            self.places.of,
            self.places.local_steps,
            self._vault.steps_in_memory,
            self.places.begun,
            self.places.early_steps,
            is_dying,
        )
        self._saver = Saver(self.logic, self._vault, self.places, self._apply, self.observer.note)
        self._saver.after = self._check_end

    def _make_crew(self) -> None:
        logic = self.logic
        self._peers = Peers(logic.me, self._identity, logic.keeper, logic.kept, self._on_peer, self._on_peer_reply)
        self.crew = Crew(
            self.settings,
            self.logic,
            self.places,
            self._peers,
            Births(self.settings, self.places, self._identity),
            self.ledger,
            self.witness,
            self.observer,
            self._apply,
        )
        self.crew.after_exit = self._check_end

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
            self.crew.kill_all()
            return
        self._stop_signal, self._stopped_at = number, time.monotonic()
        self._manager.stopping = True
        name, grace = signal.Signals(number).name, self.settings.grace_s
        others = self.settings.several and self.settings.max_nodes > 1 and self.logic.node >= 0
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
        return Policy.DUMP in self.settings.policies and placed and self.logic.attached

    def _end_all(self) -> None:
        if not self.logic.stopping:
            self._manager.retire()
            self._apply(self.logic.stop())
            self._check_end()

    async def _clean_up(self) -> None:
        self._office.leave()
        for task in list(self._tasks):
            task.cancel()
        self.crew.end()
        if self.settings.several and not self._stop_signal:
            await self._manager.farewell(FAREWELL_S)
        self._manager.stop()
        self._peers.close()
        self.crew.dismiss_guard()
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

    # ------------------------------------------------------------------------------------------ manager

    def _on_manager(self, message: object) -> None:
        match message:
            case Orders():
                self._herald.say_what_is_missed(message)
                self._vault.settle(message.run, message.node == 0)
                self.ledger.on_orders(message)
                self._herald.say_where_it_begins(message)
                self._apply(self.logic.on_orders(message))
                if self.logic.orders is message:
                    self._herald.say_where_we_stand(message.node, bool(self._stop_signal))
                    for text in self.ledger.conditions.update(message.conditions):
                        self.observer.note(text)
                if self._stop_signal and (message.phase == "Stopped" or message.node < 0):
                    self._end_all()  # all is saved, or the others go on without us
                self._check_end()
                self._herald.say_what_is_awaited(message.waiting)
            case Beat():
                self._herald.say_what_is_awaited(message.waiting)
            case Note():
                self._herald.pass_on(message)
            case Refused():
                self._on_refused(message.why)
            case IncidentNote():
                self.ledger.on_incident(message.incident, message.open)
            case FaultAnswer():
                self.courier.on_answer(message)
            case CaptureStacks():
                self._spawn(self.ledger.capture(message))

    def _on_refused(self, why: str) -> None:
        """Who never had a part in the job ends. Who has one goes on with it: its ranks are worth more than a flag."""
        if self.logic.orders is None and not self._gave_up:
            self._gave_up = f"the job's manager has refused this node: {why}"
            self._exit_code = WRONG_USAGE
            self.observer.note(self._gave_up)
            self._done.set()

    def _send_facts(self) -> None:
        if self._office.open:
            self._sent_at = time.monotonic()
            self.logic.lonely_s = self._office.lonely_s
            self.logic.times = self.ledger.times()
            self._office.send(self.logic.facts(self._sent_at, told=self._office.in_office))

    def _known_doors(self) -> list[str]:
        """Where managers of the job are, if the one that we host is in office."""
        orders, me = self.logic.orders, self._meeting.member
        if orders is None or orders.seat != me.id or not self._office.in_office:
            return []
        return [me.manager, *orders.managers, *orders.doors]

    def _on_peer(self, agent: str, message: object) -> None:
        self._apply(self.logic.on_peer(agent, message))

    def _on_peer_reply(self, message: PeerReply) -> None:
        self._apply(self.logic.on_peer_reply(message))

    # ------------------------------------------------------------------------------------------ ranks

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartProcess():
                    self._spawn(self.crew.start(effect))
                case KillProcess():
                    self.crew.kill(effect)
                case SendRank():
                    self.crew.send(effect.process, effect.message)
                case FetchLocal():
                    self._spawn(self.crew.fetch_local(effect))
                case SendPeer():
                    self._peers.send(effect.peer, effect.message)
                case AnswerPeer():
                    self._peers.answer(effect.agent, effect.message)
                case Say():
                    say = self.observer.detail if self.ledger.open_incident is not None else self.observer.note
                    say(effect.text)
                case UseDirectory() | WriteCheckpoint() | PublishCheckpoint() | DropPart():
                    self._spawn(self._saver.carry_out(effect))
        if self.logic.changed:
            self._send_facts()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Of one of our processes, or of a person's command."""
        try:
            await accept_peer(reader, writer, self._identity.token, GREETING_S)
            message: object = decode(first_word, await read_frame(reader))
            if isinstance(message, ControlRequest):
                return await self._desk.serve(message, reader, writer)
            assert isinstance(message, Hello)
            self.crew.admit(message, writer)
            await self.crew.listen(message, reader)
        except WireError as e:
            self.refused += 1
            if isinstance(e, HungUp):
                log.info("a connection to the agent was refused: %s", e)
            elif self._told_refused < MOST_REFUSED:  # who knocks without end shall not fill the screen and the disk
                self._told_refused += 1
                last = "; further ones are only counted" if self._told_refused == MOST_REFUSED else ""
                log.warning("a connection to the agent was refused: %s%s", e, last)
        except asyncio.CancelledError:
            pass  # the job is over; before 3.12 asyncio prints a traceback for a connection's task that was cancelled
        finally:
            writer.close()

    def inject(self, injection: Injection) -> None:
        """Take up an injection while the job runs."""
        self._apply(self.logic.inject(injection))

    # ------------------------------------------------------------------------------------------ watching

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.logic.late_s = self._lateness.see(now - due, now)
            self.crew.look()
            self.crew.make_room()
            self._apply(self.logic.want_spares(self.crew.has_room))
            self._mind_the_manager()
            self._sabotage.look(self.ledger.gauges.top_step, self.ledger.open_incident is not None)
            self.witness.look()
            self.ledger.count()
            if self.logic.changed or time.monotonic() - self._sent_at >= self._facts_s:
                self._send_facts()
            self.crew.reap(self._manager.pid)
            self.observer.status(self.ledger.view())

    def _mind_the_manager(self) -> None:
        """Whoever does not answer, or does not let us in, is not waited for in silence."""
        office = self._office
        self._line.hosts(self._meeting.member.manager if self._manager.pid else "")
        self._manager.end_if_stopped()
        self._manager.end_if_silent(office.silent_s(self._meeting.member.manager))
        if office.turned_away == 3 and not self._told_away:
            self._told_away = True
            what = "it may have another token, or be no manager; its reason is in manager.log on its node"
            self.observer.note(f"the manager at {', '.join(office.doors).replace('|', ':')} does not let us in: {what}")
        waited = time.monotonic() - self._started_at
        alone = self.logic.orders is None and not (office.open or office.turned_away or self._meeting.hosts)
        nobody = f"nobody answers at {', '.join(office.doors).replace('|', ':')}" if alone else ""
        if nobody and waited > UNANSWERED_S and not self._told_nobody:
            self._told_nobody = True
            limit = f"{self.settings.join_timeout_s:g} s at most (--join-timeout)"
            self.observer.note(f"{nobody}, where the job's nodes are to meet; waiting for its first node, {limit}")
        if self.logic.orders is None and waited > self.settings.join_timeout_s and not self._gave_up:
            self._gave_up = f"the job did not begin within {self.settings.join_timeout_s:g} s (--join-timeout)"
            if self._herald.awaited:
                self._gave_up += f"; it waited for {self._herald.awaited}"
            elif nobody:
                self._gave_up += f"; {nobody}"
            self.observer.note(self._gave_up)
            self._done.set()
        if self.logic.orders is not None and office.lonely_s > QUORUM_S and not self.logic.stopping:
            what = self._herald.awaited or "the job's manager does not answer"
            self._gave_up = f"no manager in office for {QUORUM_S:g} s ({what}); check that the other nodes are there"
            self.observer.note(f"{self._gave_up}; ending all ranks")
            self._end_all()

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

    def _outcome(self) -> Outcome:
        if self._crash is not None:
            raise OnwardError(f"internal error in the launcher: {self._crash!r}") from self._crash
        self.ledger.count()
        view, orders = self.ledger.view(), self.logic.orders
        self.observer.status(view)
        for missing in self.ledger.unseen() if not self._stop_signal else []:
            self.observer.note(f"injected fault: {missing}")
        exit_code = orders.exit_code if orders is not None and orders.exit_code is not None else 1
        if exit_code or self._stop_signal:
            self._herald.say_how_to_go_on(self.settings.dump_dir is not None)
        phase = orders.phase if orders is not None else "Failed"
        root = orders.root_cause if orders is not None else None
        if self._gave_up:
            exit_code, phase, root = self._exit_code, "Failed", None
        if self._stop_signal:
            exit_code = 128 + self._stop_signal
            phase = f"Stopped by {signal.Signals(self._stop_signal).name}"
            root = None
        reason = self._gave_up or (orders.reason if orders is not None else "")
        if self._stop_signal:  # a step that one rank had made and another not has been saved, and so counts
            view = replace(view, step=max(view.step, *self.logic.saving.published, 0))
        outcome = self.ledger.outcome(view, exit_code, phase, reason, root)
        return replace(outcome, script=self.settings.script, refused=self.refused)
