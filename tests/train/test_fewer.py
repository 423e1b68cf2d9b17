"""What a group asks of those who are there, where the script counts with all."""

from __future__ import annotations

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from onward.errors import UsageError
from onward.train.fewer import among

pytestmark = [pytest.mark.torch]


def tensors(*numbers: int) -> list[torch.Tensor]:
    return [torch.tensor([n]) for n in numbers]


def test_what_absent_ranks_would_give_is_as_what_this_rank_gives() -> None:
    outputs, mine = [tensors(0, 0, 0, 0)], tensors(7)
    op, (those, inputs, _) = among((0, 2, 3), 4, "allgather", (outputs, mine, c10d.AllgatherOptions()), False)
    assert (op, inputs) == ("allgather", mine)
    assert [id(t) for t in those[0]] == [id(outputs[0][r]) for r in (0, 2, 3)]
    assert outputs == [tensors(0, 7, 0, 0)]


def test_into_one_tensor_as_well() -> None:
    output = torch.zeros(4, 2)
    args = (output, torch.tensor([7.0, 8.0]), c10d.AllgatherOptions())
    op, (those, _, _) = among((0, 2), 4, "_allgather_base", args, False)
    assert op == "allgather"
    for row in those[0]:
        row += 1
    assert output.tolist() == [[1, 1], [7, 8], [1, 1], [7, 8]]


def test_who_counts_only_those_who_are_there_gets_what_it_asked_for() -> None:
    args = ([tensors(0, 0, 0)], tensors(7), c10d.AllgatherOptions())
    assert among((0, 2, 3), 4, "allgather", args, False) == ("allgather", args)


def test_a_root_is_found_among_those_who_are_there() -> None:
    options = c10d.BroadcastOptions()
    options.rootRank = 3
    _, (_, told) = among((0, 2, 3), 4, "broadcast", (tensors(1), options), True)
    assert (told.rootRank, options.rootRank) == (2, 3)
    _, (_, counted) = among((0, 2, 3), 4, "broadcast", (tensors(1), options), False)
    assert counted is options, "counted among those who are there already"


def test_what_only_an_absent_rank_can_tell_is_not_made_up() -> None:
    options = c10d.BroadcastOptions()
    options.rootRank = 1
    with pytest.raises(UsageError, match="rank 1 of the group, which is absent"):
        among((0, 2, 3), 4, "broadcast", (tensors(1), options), True)
