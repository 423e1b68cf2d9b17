"""Careful and light steps of one rank: when the state is copied aside, and when local state is published."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onward.train.buckets import Buckets
from onward.train.groups import Groups
from onward.train.local import LocalState
from onward.train.partner import Partner
from onward.train.protected import Protected
from onward.train.rank import is_shown
from onward.train.transaction import Transaction
from onward.train.waits import Waits
from onward.wire.identity import Identity
from onward.wire.messages import Form
from onward.wire.page import Page, create

pytestmark = pytest.mark.torch


class Rank:
    """A model of one layer and the transaction around its steps."""

    def __init__(self, path) -> None:
        create(str(path / "page"))
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.protected = Protected(Buckets(Groups(None, "", 1.0)))
        self.protected.add("model", self.model)
        self.protected.add("optimizer", self.optimizer)
        self.local = LocalState(str(path), self.protected, Partner(Identity(b""), 0, 0, Waits()))
        self.tx = Transaction(self.protected, self.local, Groups(None, "", 1.0), Page(str(path / "page")))
        self.tx.first_publish()

    def step(self, noise: bool = False) -> int:
        """Up to where the gate would be; the vote."""
        tx = self.tx
        tx.begin()
        self.model(torch.randn(4, 2)).sum().backward()
        tx.on_collective("allreduce", True)
        assert tx.gate()
        self.optimizer.step()
        if noise:
            torch.randn(1)
        self.optimizer.zero_grad()
        vote = tx.end()
        tx.applied()
        return vote

    def become_light(self) -> None:
        while not self.tx.light_at:
            self.tx.settled(self.step())


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path)


def test_the_first_steps_are_careful_and_the_copy_can_be_taken_back(rank):
    before = [p.detach().clone() for p in rank.model.parameters()]
    rank.step()
    assert rank.tx.needs_gate
    assert rank.tx.standing() == (1, True, True)
    rank.tx.take_back(0)
    assert all(torch.equal(a, b) for a, b in zip(before, rank.model.parameters(), strict=True))


BY_HAND = {
    "in-place": lambda p: p.mul_(0.5),
    "past-the-count": lambda p: p.data.mul_(0.5),  # torch counts no version of the parameter
}


@pytest.mark.parametrize("change", BY_HAND.values(), ids=BY_HAND)
@pytest.mark.parametrize("gated", [True, False], ids=["before-an-update", "without-one"])
def test_what_a_script_changes_by_itself_is_taken_back(rank, change, gated):
    """Also in the first block, of which nothing is known."""
    before = [p.detach().clone() for p in rank.model.parameters()]
    for _ in range(2):
        rank.tx.begin()
        with torch.no_grad():
            for p in rank.model.parameters():
                change(p)
        if gated:
            assert rank.tx.gate()
        assert rank.tx.standing() in ((1, False, True), (0, True, False))
        rank.tx.keep() if rank.tx.standing()[1] else rank.tx.take_back(0)
        assert all(torch.equal(a, b) for a, b in zip(before, rank.model.parameters(), strict=True))


@pytest.mark.parametrize("change", BY_HAND.values(), ids=BY_HAND)
@pytest.mark.parametrize("gated", [True, False], ids=["before-an-update", "without-one"])
def test_a_block_that_changes_parameters_by_itself_never_becomes_light(rank, change, gated):
    def block() -> int:
        rank.tx.begin()
        rank.tx.on_collective("allreduce", True)
        with torch.no_grad():
            change(rank.model.weight)
        if gated:
            rank.tx.gate()
        vote = rank.tx.end()
        rank.tx.applied()
        return vote

    assert [block() for _ in range(4)] == [0] * 4


def gradient_step(rank, zeroes: bool, updates: bool) -> None:
    """A block that zeroes what it finds, or does not, gathers gradients, and uses them or not."""
    tx = rank.tx
    tx.begin()
    if zeroes:
        tx.on_zero_grad(rank.model.parameters())
        rank.optimizer.zero_grad()
    rank.model(torch.randn(4, 2)).sum().backward()
    tx.on_collective("allreduce", True)
    if updates:
        tx.updates(rank.optimizer)
        assert tx.gate()
    vote = tx.end()
    tx.applied()
    if tx.needs_gate:
        tx.settled(vote)


def test_gradients_that_the_next_block_may_use_are_part_of_the_state(rank):
    """Until a block is seen to zero what it finds."""
    for zeroes in (False, True, False):
        gradient_step(rank, zeroes, updates=True)
        assert rank.local.carry_grads == (not zeroes), "one that uses them counts for good"


def test_gradients_that_no_update_has_used_yet_are_part_of_the_state(rank):
    """Also where blocks have zeroed what they found so far, and became light: from here on two go together."""
    gradient_step(rank, zeroes=False, updates=True)
    while not rank.tx.light_at:
        gradient_step(rank, zeroes=True, updates=True)
    gradient_step(rank, zeroes=True, updates=False)
    assert rank.tx.needs_gate, "they are safe before anybody takes the step for done"
    gathered = rank.model.weight.grad.clone()
    rank.tx.begin()
    rank.model(torch.randn(4, 2)).sum().backward()
    rank.tx.keep()
    assert torch.equal(rank.model.weight.grad, gathered)


def test_sparse_gradients_are_part_of_the_state_too(rank):
    words = nn.Embedding(5, 2, sparse=True)
    rank.protected.add("words", words)
    rank.tx.begin()
    words(torch.tensor([3, 1, 3])).sum().backward()
    gathered = words.weight.grad.clone()
    rank.tx.end()
    rank.tx.applied()
    rank.tx.begin()
    words(torch.tensor([2])).sum().backward()
    rank.tx.keep()
    assert words.weight.grad.is_sparse
    assert torch.equal(words.weight.grad._indices(), gathered._indices())
    assert torch.equal(words.weight.grad.to_dense(), gathered.to_dense())


def test_whoever_joins_light_steps_takes_gradients_for_zeroed_as_the_others_do(rank):
    rank.tx.go_light(1)
    gradient_step(rank, zeroes=True, updates=True)
    assert not rank.tx.needs_gate


def test_steps_of_one_shape_become_light(rank):
    rank.become_light()
    rank.step()
    assert not rank.tx.needs_gate
    assert rank.tx.standing()[2] is False, "nothing was copied aside"


def test_steps_stay_light_through_a_recovery(rank):
    rank.become_light()
    shape = rank.tx.shape
    rank.tx.begin()
    rank.tx.keep()
    assert rank.tx.shape == shape, "what it reports while the new generation forms"
    rank.tx.go_light(shape)
    step = rank.tx.step
    rank.step()
    assert not rank.tx.needs_gate
    assert step + 1 in rank.local.steps(), "published before the last collective"


def early(rank) -> list[bool]:
    """Of the slots of the last step and of the one to come, as an agent reads them."""
    return [bool(memoryview(rank.local.slot(rank.tx.step + i).map).cast("q")[4]) for i in range(2)]


def test_what_is_published_before_the_end_of_a_step_says_so_until_the_end_has_come(rank):
    rank.become_light()
    rank.tx.begin()
    rank.model(torch.randn(4, 2)).sum().backward()
    rank.tx.on_collective("allreduce", True)
    assert early(rank) == [False, True]
    rank.tx.keep()
    rank.tx.go_light(rank.tx.shape or 1)
    rank.step()
    assert early(rank)[0] is False, "confirmed"
    rank.step(noise=True)
    assert early(rank)[0] is False, "written once more"
    assert rank.tx.shape == 0


def test_one_that_broke_the_shape_does_not_promise_it_again(rank):
    rank.become_light()
    rank.step(noise=True)
    assert rank.tx.broke_shape
    assert rank.tx.shape == 0
    rank.tx.keep()
    assert rank.tx.shape == 0
    rank.tx.go_light(0)
    assert rank.step() == 0
    assert rank.tx.needs_gate


class Growing(nn.Module):
    """Keeps what it has seen, and an average that is there from the first use on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(0))
        self.register_buffer("average", None)

    def forward(self, x: float) -> None:
        self.bank = torch.cat([self.bank, torch.full((1,), x)])
        self.average = self.bank.mean() if self.average is None else 0.5 * self.average + x


def test_buffers_are_put_back_with_their_size_and_those_that_did_not_exist_are_gone(rank):
    growing = Growing()
    rank.protected.add("growing", growing)
    rank.tx.first_publish()
    for x in (1.0, 2.0):
        rank.tx.begin()
        growing(x)
        rank.tx.keep()
        assert growing.bank.shape == (0,)
        assert growing.average is None
    rank.step()
    rank.tx.begin()
    growing(3.0)
    rank.tx.end()
    rank.tx.applied()
    rank.tx.begin()
    growing(4.0)
    rank.tx.keep()
    assert growing.bank.tolist() == [3.0]
    assert growing.average == 3.0
    fresh = Growing()
    rank.protected.modules["growing"] = fresh
    rank.protected.look_for_buffers()
    rank.tx.moved_to(rank.tx.step)
    assert fresh.bank.tolist() == [3.0], "as a replacement has it, which has never used it"
    assert fresh.average == 3.0


def test_a_block_run_for_show_on_a_state_that_counts_leaves_it_as_it_was(rank: Rank) -> None:
    for _ in range(2):
        rank.tx.settled(rank.step())
    weight, drawn = rank.model.weight.detach().clone(), torch.get_rng_state()
    rank.tx.set_aside()
    rank.model(torch.randn(4, 2)).sum().backward()
    rank.optimizer.step()
    assert not torch.equal(rank.model.weight, weight)
    rank.tx.take_back(2)
    assert torch.equal(rank.model.weight, weight)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert rank.model.weight.grad is None
    assert rank.tx.standing() == (2, True, False)


@pytest.mark.parametrize(
    ("part", "begun", "owed", "shown"),
    [
        ("receive", 4, 0, True),
        ("load", 4, 0, True),
        ("receive", 5, 0, False),  # it has been past it
        ("keep", 4, 0, False),
        ("keep", 4, 5, True),  # it was given that in a try that failed
        ("keep", 4, 6, False),  # all go on from before what it was to be given
    ],
)
def test_what_comes_before_a_step_that_was_given_is_shown_once(part: str, begun: int, owed: int, shown: bool) -> None:
    assert is_shown(Form(world_size=2, step=5, part=part), begun, owed) is shown  # type: ignore[arg-type]
    assert not is_shown(Form(world_size=2, step=5, part=part, past=True), begun, owed)  # type: ignore[arg-type]
