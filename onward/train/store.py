"""The rendezvous store as torch wants it, over the link we already have.

It lives in an agent, outside the ranks, and each generation has its own: nothing stale is ever read, and losing the
agent that keeps it is a fault that opens a new generation anyway.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from onward.train.link import Interrupted, Link


class LinkStore(dist.Store):
    """A torch Store whose keys live in the agent, below the current generation."""

    def __init__(self, link: Link, generation: Any, timeout_s: float = 300.0) -> None:
        super().__init__()
        self._link = link
        self._generation = generation  # callable: the generation that new keys belong to
        self._timeout_s = timeout_s

    def _ask(self, op: str, key: str, timeout_s: float | None = None, **fields: Any) -> Any:
        try:
            reply = self._link.ask(self._generation(), op, key, timeout_s or self._timeout_s, **fields)
        except Interrupted as e:
            raise RuntimeError(str(e)) from e
        except TimeoutError as e:
            raise RuntimeError(f"wait timeout after {self._timeout_s * 1000:g}ms: {e}") from e
        if reply.error:
            raise RuntimeError(reply.error)
        return reply

    def set(self, key: str, value: Any) -> None:
        self._ask("set", key, value=_bytes(value))

    def get(self, key: str) -> bytes:
        value: bytes = self._ask("get", key).value
        return value

    def add(self, key: str, amount: int) -> int:
        number: int = self._ask("add", key, amount=amount).number
        return number

    def append(self, key: str, value: Any) -> None:
        self._ask("append", key, value=_bytes(value))

    def check(self, keys: list[str]) -> bool:
        return all(self._ask("check", key).number for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._ask("get", key, timeout.total_seconds() if timeout is not None else None)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

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
        return False

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
