"""DDP wrappers whose state a replacement could not be given are refused, and each is told how to go on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from onward.train import wrappers
from onward.train.wrappers import PowerSGD


@dataclass
class Wrapper:
    """As much of one as is asked for."""

    ranks: int = 2
    _comm_hooks: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def process_group(self) -> dist.ProcessGroup:
        return dist.ProcessGroup(0, self.ranks)


def problems(wrapper: Wrapper, *protected: object) -> list[str]:
    return wrappers.problems("net", wrapper, 2, {id(p) for p in protected})  # type: ignore[arg-type]


def own_hook(state: object, bucket: object) -> None:
    """Somebody's."""


def test_one_for_some_of_the_ranks_is_not_the_same_on_all() -> None:
    (told,) = problems(Wrapper(ranks=1))
    assert told.startswith("protect: net is wrapped for a group of 1 of 2 ranks, so that its state is not the same on")
    assert "local={'net': net.module, ...}" in told


@pytest.mark.parametrize("state", [None, 3, "text", dist.ProcessGroup(0, 2), (dist.ProcessGroup(0, 2), 0.5)])
def test_a_hook_without_state_of_its_own_is_welcome(state: object) -> None:
    assert problems(Wrapper(_comm_hooks=[(default_hooks.fp16_compress_hook, state)])) == []


def test_one_with_state_must_have_it_protected() -> None:
    state: dict[str, Any] = {}
    wrapper = Wrapper(_comm_hooks=[(own_hook, state)])
    (told,) = problems(wrapper)
    assert "net has a communication hook (own_hook) with state of its own (a dict)" in told
    assert "local={'hook': state}" in told
    assert problems(wrapper, state) == []
    assert problems(Wrapper(_comm_hooks=[(own_hook, (state, 1))]), state) == []


def test_one_that_lets_ranks_drift_apart_is_refused() -> None:
    state = PostLocalSGDState(None, None, start_localSGD_iter=10)
    (told,) = problems(Wrapper(_comm_hooks=[(post_localSGD_hook, state)]))
    assert "post_localSGD_hook, after which the parameters are not the same on all ranks" in told


def test_the_state_of_power_sgd_goes_from_one_to_another() -> None:
    here, there = (PowerSGDState(None, start_powerSGD_iter=2, random_seed=seed) for seed in (1, 2))
    assert problems(Wrapper(_comm_hooks=[(powerSGD_hook, here)])) == []
    here.iter, here.p_memory_dict[0], here.q_memory_dict[1] = 7, torch.ones(2), torch.zeros(3)
    here.rng.standard_normal()  # the second of a pair is held back
    saved = copy.deepcopy(PowerSGD(here, torch.device("cpu")).state_dict())
    there.p_memory_dict[5] = torch.ones(1)
    PowerSGD(there, torch.device("cpu")).load_state_dict(saved)
    assert (there.iter, [*there.p_memory_dict], [*there.q_memory_dict]) == (7, [0], [1])
    assert [there.rng.standard_normal() for _ in range(3)] == [here.rng.standard_normal() for _ in range(3)]
