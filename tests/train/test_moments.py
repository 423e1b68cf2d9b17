"""What is small, as of the commit and as of the top of the loop, from one process to another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onward.train.buckets import Buckets
from onward.train.groups import Groups
from onward.train.protected import Protected
from onward.train.values import SMALL_BYTES, Snapshot

pytestmark = pytest.mark.torch


class Side:
    """One process: what its script protects, and what the code after a block does."""

    def __init__(self) -> None:
        self.protected = Protected(Buckets(Groups(None, "", 1.0)))
        model = nn.Linear(2, 2)
        self.opt = torch.optim.SGD(model.parameters(), lr=1.0)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 1, gamma=0.5)
        self.mean, self.large = torch.zeros(2), torch.zeros(SMALL_BYTES)
        self.seen = {"n": 0, "mean": self.mean, "large": self.large, "list": []}
        objects = {"model": model, "opt": self.opt, "schedule": self.schedule, "seen": self.seen}
        for name, value in objects.items():
            self.protected.add(name, value)

    def after_block(self) -> None:
        self.opt.step()
        self.schedule.step()
        self.seen["n"] += 1
        self.mean += 1
        self.seen["list"].append(self.seen["n"])

    @property
    def state(self) -> tuple[object, ...]:
        rate = self.opt.param_groups[0]["lr"]
        return rate, self.schedule.last_epoch, self.seen["n"], self.mean.tolist(), list(self.seen["list"])


AT_COMMIT, AT_TOP = (1.0, 0, 0, [0.0, 0.0], []), (0.5, 1, 1, [1.0, 1.0], [1])


@pytest.fixture
def source() -> Side:
    side = Side()
    side.protected.begin()
    side.protected.note_commit(3)
    return side


def given(source: Side, behind: bool) -> tuple[Side, int]:
    """Another, who is given that state; and how many tensors moved."""
    to = Side()
    manifest, tensors = source.protected.describe(3, 0, behind=True)
    targets = to.protected.targets(manifest)
    with torch.no_grad():
        for target, t in zip(targets, tensors, strict=True):
            target.detach().copy_(t)
    to.protected.accept(manifest, targets, behind)
    return to, len(tensors)


def test_who_is_behind_has_each_change_once(source: Side) -> None:
    source.after_block()
    source.protected.reach_top(3)
    to, _ = given(source, behind=True)
    assert to.state == AT_COMMIT
    assert to.seen["mean"] is to.mean, "the script may hold on to it"
    to.after_block()
    to.seen["n"] = 77  # made of a value that is known to those only who had run the block
    to.protected.reach_top(3)
    assert to.state == AT_TOP
    assert to.seen["mean"] is to.mean


def test_who_is_not_behind_is_as_the_others_are(source: Side) -> None:
    source.after_block()
    source.protected.reach_top(3)
    to, _ = given(source, behind=False)
    assert to.state == AT_TOP
    again, _ = given(to, behind=True)
    assert again.state == AT_COMMIT, "and can tell a third one how it was at the commit"


def test_a_source_that_is_in_that_code_itself(source: Side) -> None:
    source.after_block()  # and there is more to come, with a collective in it
    to, _ = given(source, behind=True)
    assert to.state == AT_COMMIT
    assert not to.protected.can_reach_top
    to.after_block()
    to.protected.reach_top(3)
    assert to.state == AT_TOP, "its own doing"


def test_what_has_not_changed_moves_once(source: Side) -> None:
    _, before = given(source, behind=True)
    source.after_block()
    _, after = given(source, behind=True)
    assert after == before + 1, "the mean, not the large one"


def test_a_large_tensor_is_copied_when_it_was_written() -> None:
    large = torch.zeros(SMALL_BYTES)
    first = Snapshot("seen", {"large": large})
    same = Snapshot("seen", {"large": large}, first)
    assert same._held[id(large)][1] is first._held[id(large)][1]
    large += 1
    later = Snapshot("seen", {"large": large}, same)
    large += 1
    later.put_back()
    assert large[0] == 1
    same.put_back()
    assert large[0] == 0
