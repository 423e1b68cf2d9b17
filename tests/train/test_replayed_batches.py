"""Batches from a DataLoader: a replacement that skips forward gets the items that its rank would have got."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from onward.train.batches import Replayed
from onward.train.streams import PythonStream, TorchStream

pytestmark = pytest.mark.torch


def test_every_epoch_is_shuffled_alike_whatever_was_drawn_meanwhile() -> None:
    def make() -> Replayed:
        torch.manual_seed(3)
        return Replayed(DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True))

    def take(batches: Replayed) -> list[float]:
        found: list[float] = next(batches)[0].tolist()
        return found

    rank, seen = make(), []
    for number in range(14):
        if number == 9:
            position, stream = rank.position, torch.get_rng_state()
        seen.append(take(rank))
        torch.rand(5)  # what the rank draws besides
    replacement = make()
    take(replacement)
    torch.rand(99)
    replacement.rewind(position)  # in the third epoch, of four batches each
    torch.set_rng_state(stream)
    for wanted in seen[9:]:
        assert take(replacement) == wanted
        torch.rand(5)
    assert seen[4:8] != seen[:4], "each epoch has an order of its own"


class Augmented:
    """Each sample is changed at random, in the process that trains."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> float:
        return i + float(torch.rand(1)) + random.random()


def augmented(seed: int = 3) -> Replayed:
    torch.manual_seed(seed)
    random.seed(seed)
    return Replayed(DataLoader(Augmented(), batch_size=2))


def streams() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), random.getstate()


def test_what_a_data_set_draws_moves_the_random_streams_as_without_onward() -> None:
    batches = augmented()
    found, after = [next(batches).tolist() for _ in range(8)], streams()
    torch.manual_seed(3)
    random.seed(3)
    loader = DataLoader(Augmented(), batch_size=2)
    assert [batch.tolist() for _ in range(2) for batch in loader] == found
    assert streams() == after


def test_an_item_that_is_handed_out_again_leaves_the_streams_as_the_first_time() -> None:
    batches = augmented()
    next(batches)
    position = batches.position
    before = [(stream, stream.read()) for stream in (PythonStream(), TorchStream())]
    first, after = next(batches).tolist(), streams()
    for stream, state in before:
        stream.write(state)
    batches.rewind(position)
    assert next(batches).tolist() == first
    assert streams() == after


def test_an_item_of_a_rehearsal_is_drawn_anew_with_the_numbers_of_the_step() -> None:
    rank = augmented()
    next(rank)
    position = rank.position
    torch.manual_seed(8)  # as a script may at the start of each step
    wanted = next(rank).tolist()
    replacement = augmented()
    next(replacement)
    next(replacement)  # with other numbers
    replacement.rewind(position)
    torch.manual_seed(8)
    random.seed(3)
    [random.random() for _ in range(2)]
    assert next(replacement).tolist() == wanted
