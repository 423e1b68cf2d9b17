"""The life of a stand-in that follows: which block it runs next, what that comes to, and what it may claim to hold.

Nothing here may hurt: the process is one that stands ready and holds nothing. When it loses its way it is that again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.errors import StateError, Unwind, UsageError, WireError
from onward.log import get_logger
from onward.train.feed import Begun, Ended, check_of, digest_of
from onward.train.groups import Groups
from onward.train.local import LocalState
from onward.train.protected import Protected
from onward.train.shadow import Astray, Shadow
from onward.train.transaction import Transaction
from onward.wire.identity import Identity
from onward.wire.messages import FollowsWord, RankOrder

log = get_logger("onward.train")
CLOSE = 1  # steps behind at most, to be called one that keeps up


class Following:
    """Used by `run`, in a process that is parked."""

    def __init__(self, protected: Protected, local: LocalState, tx: Transaction, groups: Groups) -> None:
        self._protected, self._local, self._tx, self._groups = protected, local, tx, groups
        self._shadow: Shadow | None = None
        self._begun: Begun | None = None
        self._tried = ""  # whom it has tried to follow
        self.claimed = 0  # the generation for which it says that it holds what the other held; 0: none
        self._lost = ""  # why it follows no more
        self._entered = False
        self._news = False
        self.follows: FollowsWord = ""
        self.between: list[bytes] = []  # what the other had behind it since its last commit

    def concerns(self, order: RankOrder) -> bool:
        """Something is to be done: somebody to be followed, or a claim to be given up."""
        return (bool(order.follow) and order.follow != self._tried) or self._outlived(order)

    def _outlived(self, order: RankOrder) -> bool:
        return bool(self.claimed) and order.generation > self.claimed

    def begin(self, order: RankOrder, identity: Identity, rank: int, interrupted: Callable[[], bool]) -> bool:
        """Take over the state of the one to be followed, while it trains on. False when that did not work."""
        if self._outlived(order):  # the others stand elsewhere by now, or went on
            self.claimed = 0
            self._local.forget()
            self._lost = "the swap did not take place"
            return False
        self._tried, self._lost, self._entered = order.follow, "", True
        self._local.aside()
        try:
            self._shadow = Shadow(order.follow, identity, rank, interrupted)
            self._tx.open = self._tx.undo = False
            state = self._shadow.state(self._protected)
            self._local.carry_grads = state.carry_grads
            self._local.slot(state.step).put_image(state.local)
            self._tx.moved_to(state.step)
            self._tx.learn_from(state.manifest.last_sync)
            self._protected.buckets.arrive(state.step)
        except (OSError, WireError, StateError, RuntimeError, Unwind) as e:
            self._lost = str(e) or type(e).__name__
            return False
        self._groups.alone = True
        self._groups.told = self._told
        return True

    # ------------------------------------------------------------------------------------- blocks

    def next_step(self) -> int | None:
        """The step whose block is to be run, once it has begun there; None when it is over."""
        assert self._shadow is not None
        if not self._entered:
            raise UsageError("the body of `for step in run.steps(n)` must run the step: `with step: ...`")
        if self._lost or self._shadow.ended is not None:
            return None
        try:
            self._begun = self._shadow.begin(self._tx.step)
        except (Unwind, StateError, WireError, OSError) as e:
            self._lost = str(e)
            return None
        self._entered = False
        return self._tx.step if self._begun is not None else None

    def enter(self) -> None:
        """The block begins here."""
        assert self._shadow is not None
        assert self._begun is not None
        self._entered = self._shadow.inside = True
        begun, self._begun = self._begun, None
        try:
            if begun.local:
                self._local.put(begun.step, begun.local)
            elif check_of(self._local.capture()) != begun.check:
                self._lost = f"step {begun.step} begins with other random numbers or positions here"
            self._tx.begin_shadow()
            if self._protected.check_small(at_begin=True) != begun.small:
                self._lost = f"step {begun.step} begins with other settings: something is changed outside the block"
        except (StateError, OSError, RuntimeError) as e:
            self._lost = str(e)

    def leave(self, error: BaseException | None) -> bool:
        """The block has ended here. True to let an exception go no further."""
        assert self._shadow is not None
        shadow, step = self._shadow, self._tx.step
        shadow.inside = False
        if error is not None and not isinstance(error, Exception | Unwind):
            return False
        if error is not None and not (isinstance(error, Unwind) and shadow.ended):
            self._lost = self._lost or f"{type(error).__name__}: {error}"
        if self._lost:
            return True
        try:
            done = shadow.finish(step) if shadow.ended is None else None
            if done is not None:
                self._tx.end_shadow()
            elif self._tx.untouched:
                self._tx.keep()  # the block had only begun there
            else:
                self._lost = f"step {step} was changed here and not there"
            if done is not None and done.newest - step <= CLOSE and not self.follows:
                self.follows, self._news = "yes", True
        except (Unwind, StateError, WireError, OSError, RuntimeError) as e:
            self._lost = str(e)
        return True

    def says_so(self) -> bool:
        """It has come so far that this is worth a word, just now."""
        news, self._news = self._news, False
        return news

    def _told(self, op: str, result: Any) -> bool:
        """Instead of a collective. Outside a block nothing is raised: nobody there could catch it."""
        shadow = self._shadow
        assert shadow is not None
        if shadow.inside and self._lost:
            raise Astray(self._lost)
        if self._lost or (shadow.ended is not None and not shadow.inside):
            return False
        try:
            if op != "send":
                shadow.fill(op, result)
        except Unwind as e:
            if shadow.inside:
                raise
            if shadow.ended is None:
                self._lost = str(e)
            return False
        return True

    # ------------------------------------------------------------------------------------- the end

    def end(self) -> int:
        """It is over. The generation for which this process now holds what the other did; 0 when it holds nothing."""
        shadow, self._shadow = self._shadow, None
        self._groups.told = None
        ended = shadow.ended if shadow is not None else None
        if not self._lost:
            try:
                self._arrive(ended)
            except (StateError, OSError, RuntimeError) as e:
                self._lost = str(e)
        if shadow is not None:
            shadow.close()
        self._local.back(keep=not self._lost)
        if self._lost or ended is None:
            log.info("does not follow: %s", self._lost)
            self._tx.open = False
            self._protected.clear_grads()
            self.follows = "no"
            return 0
        self.follows, self.claimed = "yes", ended.generation
        return ended.generation

    def _arrive(self, ended: Ended | None) -> None:
        """Stand where the other stands, and make sure of it."""
        if ended is None or ended.step < 0 or not ended.local:
            raise StateError((ended.why if ended is not None else "") or "it is told no more")
        if not ended.past:  # Python can reach that code only through the block
            raise StateError("what comes after its last block was still to be run")
        if ended.step != self._tx.step:
            raise StateError(f"it stands at step {ended.step}, and this process at {self._tx.step}")
        here, *ahead = ended.local
        self._local.put(ended.step, here)
        for image in ahead:  # the others may have that step behind them
            self._local.slot(ended.step + 1).put_image(image)
        self._tx.stands()
        if digest_of(self._protected) != ended.digest or self._protected.check_small(at_begin=False) != ended.small:
            raise StateError(f"the state of step {ended.step} is not that of the rank that was followed")
        self._tx.go_light(ended.light)
        self._local.begun = max(self._local.begun, ended.step)  # what comes after its last block has been run, there
        self.between = ended.between
