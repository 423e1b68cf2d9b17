"""What people are told about the orders of the manager, each thing once."""

from __future__ import annotations

from onward.agent.logic import AgentLogic
from onward.agent.obituary import Obituaries
from onward.agent.observer import Observer
from onward.agent.vault import Vault
from onward.core.words import ranks_named
from onward.wire.messages import Note, Orders

HINT = (
    "no rank has called onward.init(), so a failure restarts all of them from the beginning; for recovery at the step "
    "that failed add: run = onward.init(), run.protect(model=model, optimizer=optimizer), and train in "
    "`for step in run.steps(n): with step:`"
)


class Herald:
    """Remembers what has been said."""

    def __init__(self, observer: Observer, logic: AgentLogic, vault: Vault, obituaries: Obituaries) -> None:
        self.awaited = ""  # what the job waits for
        self._observer, self._logic, self._vault, self._obituaries = observer, logic, vault, obituaries
        self._heard: set[str] = set()  # loud notes
        self._hinted = False
        self._library = False  # a rank has called it
        self._judged = 0  # the attempt before which the hint was thought of
        self._stands_at: int | None = None  # the place in the last orders
        self._resumed_in = -1

    def pass_on(self, note: Note) -> None:
        if not note.loud:
            self._observer.detail(note.text)
        elif note.text not in self._heard:
            self._heard.add(note.text)
            self._observer.note(note.text)

    def say_what_is_missed(self, orders: Orders) -> None:
        """Once, and not about an error that recovery would not have helped against."""
        self._library = self._library or self._logic.attached
        if orders.attempt == 0 or self._library or self._hinted or self._judged == orders.attempt:
            return
        self._judged = orders.attempt
        if not self._obituaries.blame_the_script(orders.attempt - 1):
            self._hinted = True
            self._observer.note(HINT)

    def say_where_we_stand(self, node: int, leaving: bool) -> None:
        """A node that stands by has nothing else to show that it is of use."""
        if node < 0 and self._stands_at != node and not leaving:
            name = self._logic.settings.member.name
            self._observer.note(f"standing by as {name}; takes the place of a node that is lost")
        elif self._stands_at is not None and self._stands_at < 0 <= node:
            ranks = ranks_named(self._logic.local_ranks)
            self._observer.note(f"taking the place of node {node}: starting {ranks}")
        self._stands_at = node

    def say_where_it_begins(self, orders: Orders) -> None:
        loads = {o.form.step for o in orders.ranks if o.form is not None and o.form.part == "load"}
        if loads and orders.attempt == 0 and self._resumed_in != orders.generation:
            self._resumed_in = orders.generation
            self._observer.note(f"resuming at step {max(loads)}, from {self._vault.directory}")

    def say_what_is_awaited(self, waiting: str) -> None:
        if waiting != self.awaited and waiting:
            self._observer.note(f"waiting for {waiting}" if not waiting.startswith("NoQuorum") else waiting)
        self.awaited = waiting

    def say_how_to_go_on(self, dump_dir_given: bool) -> None:
        """What a job that did not succeed has left on disk is of use only to those who know of it."""
        step = self._vault.newest()
        if step < 0:
            return
        same = "start it again with the same command"
        if not self._vault.named and not dump_dir_given:
            same = f"start it again with --dump-dir {self._vault.directory} added to the command"
        self._observer.note(f"to go on at step {step}, {same}")
