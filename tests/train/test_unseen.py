"""What a script carries from step to step without having protected it is named, and nothing else is."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from onward.train.buckets import Buckets
from onward.train.groups import Groups
from onward.train.protected import Protected
from onward.train.unseen import Unseen

pytestmark = pytest.mark.torch


class Run:
    """The top of a loop, without a job around it."""

    def __init__(self) -> None:
        self.protected = Protected(Buckets(Groups(None, "", 1.0)))
        self._unseen = Unseen(self.protected)
        self.said: list[str] = []

    def steps(self):
        for _ in range(4):
            self.said += self._unseen.look(sys._getframe().f_back)
            yield


def forgotten(run: Run) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule, average, own = StepLR(optimizer, 2), AveragedModel(model), random.Random(1)
    items = iter(DataLoader(TensorDataset(torch.arange(9.0))))
    hidden, last, unchanged = torch.zeros(2), torch.zeros(1), torch.ones(1)
    for _ in run.steps():
        hidden = 0.5 * hidden + own.random() + unchanged
        last = next(items)[0].sum()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    assert last > 0


def kept(run: Run) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule, average = StepLR(optimizer, 2), AveragedModel(model)
    state, generator = {"hidden": torch.zeros(2)}, torch.Generator()
    hidden, loader = state["hidden"], DataLoader(TensorDataset(torch.arange(9.0)), shuffle=True, generator=generator)
    run.protected.add("schedule", schedule)
    run.protected.add("average", average)
    run.protected.add("state", state, local=True)
    for _ in run.steps():
        hidden += next(iter(loader))[0]
        optimizer.step()
        schedule.step()
        average.update_parameters(model)


def counted(run: Run) -> None:
    for _ in enumerate(run.steps()):
        pass


def paired(run: Run) -> None:
    for _step, _item in zip(run.steps(), range(9), strict=False):
        pass


CASES = {
    forgotten: ["hidden", "schedule", "average", "own", "items"],
    kept: [],
    counted: ["enumerate(...)"],
    paired: ["zip(...)"],
}


@pytest.mark.parametrize(("script", "names"), CASES.items(), ids=[case.__name__ for case in CASES])
def test_what_is_carried_and_not_protected_is_named(script: Callable[[Run], None], names: list[str]) -> None:
    run = Run()
    script(run)
    assert sorted(said.split(" ")[0] for said in run.said) == sorted(names)


def test_what_an_object_of_the_script_holds_cannot_be_seen() -> None:
    class Keeper:
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    run = Run()
    run.protected.add("keeper", Keeper())
    forgotten(run)
    assert run.said == []
