"""What one that follows is told: in the order of the launches, while it keeps up, and nothing of a failed operation.

Both ends are the real ones, over a real connection; only the training between them is left out.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from waiting import until  # noqa: E402

from onward.errors import Unwind  # noqa: E402
from onward.train.buckets import Buckets  # noqa: E402
from onward.train.feed import Ended, Feed, check_of, digest_of  # noqa: E402
from onward.train.follow import Following  # noqa: E402
from onward.train.groups import Groups  # noqa: E402
from onward.train.local import LocalState  # noqa: E402
from onward.train.partner import Partner  # noqa: E402
from onward.train.protected import Protected  # noqa: E402
from onward.train.shadow import Astray, Shadow  # noqa: E402
from onward.train.transaction import Transaction  # noqa: E402
from onward.train.waits import Waits  # noqa: E402
from onward.wire.identity import Identity  # noqa: E402
from onward.wire.messages import RankOrder  # noqa: E402
from onward.wire.page import Page, create  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]
TOKEN = b"t" * 16


class Side:
    """What a rank protects: a layer and its optimizer."""

    def __init__(self, path: Path, seed: int) -> None:
        path.mkdir()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(64, 64)
        self.protected = Protected(Buckets(Groups(None, "", 1.0)))
        self.protected.add("layer", self.layer)
        self.protected.add("optimizer", torch.optim.AdamW(self.layer.parameters()))
        self.local = LocalState(str(path), self.protected, Partner(Identity(TOKEN), 0, 0, Waits()))


class Pair:
    """One that is followed, and the connection of one that wants to."""

    def __init__(self, tmp: Path) -> None:
        self.there, self.here = Side(tmp / "there", 1), Side(tmp / "here", 2)
        self.feed = Feed("127.0.0.1", Identity(TOKEN), 3)
        self.feed.start()
        self.there.local.publish(5, self.there.local.capture())
        self.shadow = Shadow(self.feed.address, Identity(TOKEN), 3, lambda: False)
        until(lambda: self.feed.wanted, "somebody wants to follow")
        assert self.feed.begin(5, self.there.protected, self.there.local, 0)

    def tell(self, op: str, value: float, size: int = 4) -> None:
        entry = self.feed.expect(op)
        assert entry is not None
        entry.fill([torch.full((size,), value)])

    def block(self, step: int, *values: float) -> None:
        self.feed.begun(step, 0, 0, b"")
        for value in values:
            self.tell("allreduce", value)
        self.feed.committed(step)


def take_all(shadow: Shadow) -> None:
    while True:
        shadow.fill("allreduce", [torch.zeros(1 << 18)])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.feed.drop("the test is over")
    made.shadow.close()


def test_state_results_and_the_end_arrive_as_they_were(pair: Pair) -> None:
    state = pair.shadow.state(pair.here.protected)
    assert state.step == 5
    assert digest_of(pair.here.protected) == digest_of(pair.there.protected)
    assert torch.equal(pair.here.layer.weight, pair.there.layer.weight)
    pair.here.local.slot(5).put_image(state.local)
    pair.here.local.restore(5)
    assert check_of(pair.here.local.capture()) == check_of(pair.there.local.capture())
    pair.feed.begun(5, 0, 0, b"")
    first, second = pair.feed.expect("allreduce"), pair.feed.expect("allgather")
    assert first is not None
    assert second is not None
    second.fill([[torch.full((2,), 2.0), torch.full((2,), 3.0)]])  # ends first, and is still the second
    first.fill([torch.full((4,), 1.0)])
    pair.feed.committed(5)
    pair.feed.end(Ended(step=6, generation=9))
    assert pair.feed.expect("allreduce") is None, "nobody is told any more"
    assert pair.shadow.begin(5) is not None
    pair.shadow.inside = True
    reduced, gathered = torch.zeros(4), [torch.zeros(2), torch.zeros(2)]
    pair.shadow.fill("allreduce", [reduced])
    pair.shadow.fill("allgather", [gathered])
    assert (reduced.tolist(), [g.tolist() for g in gathered]) == ([1.0] * 4, [[2.0, 2.0], [3.0, 3.0]])
    done = pair.shadow.finish(5)
    assert (done and (done.step, done.newest)) == (5, 5)
    assert pair.shadow.begin(6) is None
    assert pair.shadow.ended == Ended(step=6, generation=9)


def test_who_takes_over_has_run_what_its_rank_had_run(pair: Pair, tmp_path: Path) -> None:
    """Else whoever takes its place in turn would run the code after that block once more, and alone."""
    there, here = pair.there, pair.here
    create(str(tmp_path / "page"))
    groups = Groups(None, "", 1.0)
    tx = Transaction(here.protected, here.local, groups, Page(str(tmp_path / "page")))
    following = Following(here.protected, here.local, tx, groups)
    assert here.local.begun < 5

    def tell() -> None:
        until(lambda: pair.feed.wanted, "somebody wants to follow")
        pair.feed.begin(5, there.protected, there.local, 0)
        small = there.protected.check_small(at_begin=False)
        local = [there.local.slot(5).content()]
        pair.feed.end(
            Ended(step=5, generation=2, past=True, digest=digest_of(there.protected), small=small, local=local)
        )

    telling = threading.Thread(target=tell)
    telling.start()
    order = RankOrder(rank=3, incarnation=2, generation=1, want="pause", follow=pair.feed.address)
    assert following.begin(order, Identity(TOKEN), 3, lambda: False)
    telling.join(30.0)
    assert following.next_step() is None, "the other stands at the fence"
    assert following.end() == 2
    assert here.local.begun == 5


def test_a_block_that_is_given_up_there_is_left_here(pair: Pair) -> None:
    pair.shadow.state(pair.here.protected)
    pair.feed.begun(5, 0, 0, b"")
    pair.tell("allreduce", 1.0)
    lost = pair.feed.expect("allreduce")
    assert lost is not None
    lost.fail()
    pair.feed.end(Ended(step=5, generation=9))
    assert pair.shadow.begin(5) is not None
    pair.shadow.inside = True
    pair.shadow.fill("allreduce", [torch.zeros(4)])
    with pytest.raises(Unwind):
        pair.shadow.fill("allreduce", [torch.zeros(4)])
    assert pair.shadow.ended is not None
    assert pair.shadow.ended.step == 5


def test_another_way_than_there_is_noticed(pair: Pair) -> None:
    pair.shadow.state(pair.here.protected)
    pair.block(5, 1.0)
    assert pair.shadow.begin(5) is not None
    pair.shadow.inside = True
    with pytest.raises(Astray, match="where it had run allreduce"):
        pair.shadow.fill("broadcast", [torch.zeros(4)])
    with pytest.raises(Astray, match="where it had run allreduce"):
        pair.shadow.fill("allreduce", [torch.zeros(5)])
    with pytest.raises(Astray, match="ended here and not there"):
        pair.shadow.finish(5)


def test_collectives_between_steps_are_all_run_or_all_left_out(pair: Pair) -> None:
    pair.shadow.state(pair.here.protected)
    for step in (5, 6, 7, 8):
        pair.block(step)
        pair.tell("allreduce", 1.0)
        pair.tell("allreduce", 2.0)
    for step, run_here in ((5, 0), (6, 2), (7, 1)):
        assert pair.shadow.begin(step) is not None
        assert pair.shadow.finish(step) is not None
        for _ in range(run_here):
            pair.shadow.fill("allreduce", [torch.zeros(4)])
    with pytest.raises(Astray, match="fewer collectives"):
        pair.shadow.begin(8)


def test_who_cannot_keep_up_is_dropped_and_nobody_waits(pair: Pair) -> None:
    pair.shadow.state(pair.here.protected)
    pair.feed._most_bytes = 8 << 20
    told = 0
    while pair.feed.open and told < 200:
        entry = pair.feed.expect("allreduce")
        if entry is not None:
            entry.fill([torch.zeros(1 << 18)])
        told += 1
    assert told < 200, "a megabyte each: it was given up"
    with pytest.raises(Astray, match="no more is told"):
        take_all(pair.shadow)


def test_who_does_not_know_the_secret_is_sent_away(pair: Pair) -> None:
    host, _, port = pair.feed.address.rpartition("|")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.recv(64)
        sock.sendall(b"\0\0\0\x04nope\0\0\0\x01\x80")
        assert sock.recv(64) == b""
    assert not pair.feed.wanted
    assert pair.feed.open, "and who follows goes on"
