"""Groups that are connected beside the training, for a membership to come."""

from __future__ import annotations

import socket
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from waiting import until  # noqa: E402

from onward.agent.kvstore import GenerationStore  # noqa: E402
from onward.errors import Unwind  # noqa: E402
from onward.train.ahead import Ahead  # noqa: E402
from onward.train.group import Group  # noqa: E402
from onward.train.groups import Groups  # noqa: E402
from onward.wire.messages import RankOrder, StoreReply, StoreRequest  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]
LIMIT_S = 30.0


class Agent:
    """The store of the generation that runs, for links of several ranks."""

    def __init__(self) -> None:
        self._store: GenerationStore[int] = GenerationStore(1, 2)
        self._answers: dict[int, StoreReply] = {}
        self._changed = threading.Condition()

    def ask(self, number: int, op: str, key: str, **fields: object) -> None:
        with self._changed:
            request = StoreRequest(id=number, generation=1, op=op, key=key, **fields)  # type: ignore[arg-type]
            self._answers |= {reply.id: reply for _, reply in self._store.handle(0, request)}
            self._changed.notify_all()

    def answer(self, number: int) -> StoreReply:
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers, LIMIT_S):
                raise RuntimeError("nobody answers")
            return self._answers[number]


class Line:
    """What `Ahead` needs of a link."""

    number = 0

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def look_again(self) -> None:
        pass

    def tell(self, generation: int, op: str, key: str, **fields: object) -> None:
        self._agent.ask(-1, op, key, **fields)

    def ask_each(self, generation: int, op: str, keys: list[str], timeout_s: float, **fields: object):
        numbers = []
        for key in keys:
            Line.number += 1
            numbers.append(Line.number)
            self._agent.ask(Line.number, op, key, **fields)
        return [self._agent.answer(number) for number in numbers]


def order(name: str) -> RankOrder:
    return RankOrder(rank=0, incarnation=1, generation=1, want="run", join=name)


class Rank:
    def __init__(self, index: int, agent: Agent) -> None:
        self.groups = Groups(dist.HashStore(), "127.0.0.1", LIMIT_S)
        self.groups.alone = True
        self.group = Group(self.groups, "world", index, 2, (0, 1), 2)
        self.ahead = Ahead(self.groups, Line(agent))  # type: ignore[arg-type]

    def mind(self, name: str) -> bool:
        return self.ahead.mind(order(name))


@pytest.fixture
def pair():
    agent = Agent()
    return Rank(0, agent), Rank(1, agent)


def connected(pair, name: str) -> None:
    for rank in pair:
        rank.ahead.begin_if_wanted(order(name))
    until(lambda: all(rank.ahead.joined == name for rank in pair), "the group is connected")


def test_it_takes_the_place_of_the_last_one_and_is_torn_down_as_any(pair):
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as foreign:
        connected(pair, "1/1/x")
        assert [rank.mind("1/1/x") for rank in pair] == [True, True], "which is told once"
        assert [rank.mind("1/1/x") for rank in pair] == [False, False]
        for rank in pair:
            rank.groups.open(2, (), rank.ahead.take("1/1/x"))
        tensors = [torch.full((3,), float(i + 1)) for i in range(2)]
        works = [rank.group.allreduce([t]) for rank, t in zip(pair, tensors, strict=True)]
        assert all(work.wait() for work in works)
        assert [t.tolist() for t in tensors] == [[3.0] * 3] * 2
        assert [rank.groups.generation.number for rank in pair] == [2, 2]
        blocked = pair[0].group.allreduce([torch.ones(3)])
        assert pair[0].groups.generation.drop_connections()
        pair[0].groups.generation.abort("a newer generation")
        with pytest.raises(Unwind):
            blocked.wait()
        with door.accept()[0] as other:
            foreign.sendall(b"x")
            assert other.recv(1) == b"x", "a connection of the script's is its own"


def test_what_is_not_wanted_is_dropped_and_what_is_not_there_is_refused(pair):
    connected(pair, "1/1/x")
    one, two = pair
    assert one.ahead.take("") is None
    assert one.ahead.joined == ""
    with pytest.raises(RuntimeError, match="1/1/y is not connected here"):
        two.ahead.take("1/1/y")


def test_who_comes_alone_connects_nothing(pair):
    one, _ = pair
    assert not one.mind("1/1/x"), "there is nothing to be told"
    assert one.ahead.joined == ""
    assert one.ahead.take("") is None, "nobody waits for it"
