"""Batches from a DataLoader: a replacement that skips forward gets the items that its rank would have got."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_every_epoch_is_shuffled_alike_whatever_was_drawn_meanwhile() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    from onward.train.batches import Replayed

    def make() -> Replayed:
        torch.manual_seed(3)
        return Replayed(DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True))

    def take(batches: Replayed) -> list[float]:
        found: list[float] = next(batches)[0].tolist()
        return found

    rank, seen = make(), []
    for _ in range(14):
        seen.append(take(rank))
        torch.rand(5)  # what the rank draws besides
    replacement = make()
    take(replacement)
    torch.rand(99)
    replacement.rewind(9)  # in the third epoch, of four batches each
    assert [take(replacement) for _ in range(5)] == seen[9:]
    assert seen[4:8] != seen[:4], "each epoch has an order of its own"
