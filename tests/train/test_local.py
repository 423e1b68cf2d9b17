"""What only one rank knows, in files that others may put there."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from onward.train.buckets import Buckets
from onward.train.groups import Groups
from onward.train.local import LocalState
from onward.train.partner import Partner
from onward.train.protected import Protected
from onward.train.waits import Waits
from onward.wire.identity import Identity

pytestmark = pytest.mark.torch


def state(path, model: nn.Module) -> LocalState:
    protected = Protected(Buckets(Groups(None, "", 1.0)))
    protected.add("model", model)
    return LocalState(str(path), protected, Partner(Identity(b""), 0, 0, Waits()))


def test_files_that_an_agent_puts_there_later_are_those_that_are_written(tmp_path):
    """It brings what an earlier process had kept elsewhere, while this one has the first files open already."""
    model = nn.BatchNorm1d(3)
    rank, others = state(tmp_path, model), tmp_path / "others"
    others.mkdir()
    kept = state(others, nn.BatchNorm1d(3))
    for step in (11, 12):
        rank.publish(step, rank.capture())
        kept.publish(step, kept.capture())
    for slot in ("slot0", "slot1"):
        os.replace(others / slot, tmp_path / slot)
    rank.refresh()
    for step in (20, 21):
        model.running_mean.fill_(step)
        rank.publish(step, rank.capture())
    replacement = nn.BatchNorm1d(3)
    seen = state(tmp_path, replacement)
    assert seen.steps() == (20, 21)
    for step in (20, 21):
        seen.restore(step)
        assert torch.equal(replacement.running_mean, torch.full((3,), float(step)))
