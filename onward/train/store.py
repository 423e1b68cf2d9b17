"""The rendezvous store as torch wants it, over the link we already have.

It lives in an agent, outside the ranks, and each generation has its own: nothing stale is ever read, and losing the
agent that keeps it is a fault that opens a new generation anyway.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from onward.train.link import Interrupted, Link


class LinkStore(dist.Store):
    """A torch Store whose keys live in the agent, below the current generation."""

    def __init__(self, link: Link, generation: Any, timeout_s: float = 300.0) -> None:
        super().__init__()
        # Gloo then asks for the addresses of all peers at once instead of one after the other, twice each.
        os.environ.setdefault("GLOO_ENABLE_STORE_V2_API", "1")
        self._link = link
        self._generation = generation  # callable: the generation that new keys belong to
        self._timeout_s = timeout_s

    def _ask(self, op: str, key: str, timeout_s: float | None = None, **fields: Any) -> Any:
        return self._ask_each(op, [key], timeout_s, **fields)[0]

    def _ask_each(self, op: str, keys: list[str], timeout_s: float | None = None, **fields: Any) -> list[Any]:
        try:
            replies = self._link.ask_each(self._generation(), op, keys, timeout_s or self._timeout_s, **fields)
        except Interrupted as e:
            raise RuntimeError(str(e)) from e
        except TimeoutError as e:
            raise RuntimeError(f"wait timeout after {self._timeout_s * 1000:g}ms: {e}") from e
        for reply in replies:
            if reply.error:
                raise RuntimeError(reply.error)
        return replies

    def set(self, key: str, value: Any) -> None:
        """Not waited for: whoever needs the value waits for that, and requests of one rank keep their order."""
        self._link.tell(self._generation(), "set", key, value=_bytes(value))

    def get(self, key: str) -> bytes:
        value: bytes = self._ask("get", key).value
        return value

    def add(self, key: str, amount: int) -> int:
        number: int = self._ask("add", key, amount=amount).number
        return number

    def append(self, key: str, value: Any) -> None:
        self._ask("append", key, value=_bytes(value))

    def check(self, keys: list[str]) -> bool:
        return all(reply.number for reply in self._ask_each("check", keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask_each("get", keys, timeout.total_seconds() if timeout is not None else None)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [reply.value for reply in self._ask_each("get", keys)]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        value: bytes = self._ask("compare_set", key, expected=_bytes(expected), value=_bytes(desired)).value
        return value

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key).number)

    def num_keys(self) -> int:
        number: int = self._ask("count", "").number
        return number

    def has_extended_api(self) -> bool:
        return True

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
