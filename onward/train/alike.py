"""Whether what is protected as shared is the same on every rank: looked at once, early, and said where it is not.

A replacement is given the copy of another rank. Where the ranks differ, that is a silent change of the result.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import torch

from onward.errors import StateError
from onward.log import get_logger
from onward.train.feed import digest_of_tensors
from onward.train.link import Interrupted, Link
from onward.train.protected import Protected
from onward.train.streams import tensor_bytes
from onward.train.values import plain, state_of

log = get_logger("onward.train")
TOLD_AT, COMPARED_AT = 2, 4  # steps: what differs from the first update on shows, and nobody has to wait for a word
ANSWER_S = 5.0


class Alike:
    """One of each rank. `look` is called at the top of the loop."""

    def __init__(self, link: Link, protected: Protected, rank: int) -> None:
        self._link, self._protected, self._rank = link, protected, rank
        self._told = -1  # the generation in which the others were told
        self._mine: dict[str, int] = {}

    def look(self, step: int, generation: int, first: int) -> list[str]:
        """The names of what is not here as it is on the first of the ranks that take part."""
        if step == TOLD_AT:
            try:
                self._told, self._mine = generation, self._names()
            except RuntimeError as e:  # tensors of a kind that cannot be read like this
                log.info("what is protected cannot be compared: %s", e)
                self._mine = {}
            self._link.tell(generation, "set", f"alike/{self._rank}", value=msgspec.msgpack.encode(self._mine))
        if step != COMPARED_AT or self._told != generation or self._rank == first:
            return []
        self._told = -1
        try:
            there = msgspec.msgpack.decode(self._link.ask(generation, "get", f"alike/{first}", ANSWER_S).value)
        except (Interrupted, TimeoutError):
            return []  # there are more important news
        return [name for name, check in self._mine.items() if there.get(name, check) != check]

    def _names(self) -> dict[str, int]:
        """Each with a short name for what it holds."""
        p = self._protected
        found = {name: digest_of_tensors(list(module.parameters())) for name, module in p.modules.items()}
        for name, opt in p.optimizers.items():
            tensors = [t for state in opt.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
            found[name] = digest_of_tensors(tensors)
        for name, obj in p.objects.items():
            try:
                found[name] = zlib.crc32(repr(plain(name, state_of(obj), _bytes)).encode())
            except StateError:
                continue  # which is said elsewhere
        return found


def _bytes(path: str, t: torch.Tensor) -> Any:
    return zlib.crc32(tensor_bytes(t.detach().cpu().contiguous()))
