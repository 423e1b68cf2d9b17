"""The rendezvous store of one generation: keys, counters and gates, with answers that may have to wait."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from onward.wire.messages import StoreReply, StoreRequest

Who = TypeVar("Who", bound=Hashable)


class GenerationStore(Generic[Who]):
    """Pure: `handle` returns the replies that are due now, to whomever they are due."""

    def __init__(self, generation: int, world_size: int) -> None:
        self.generation = generation
        self._world_size = world_size
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[tuple[Who, int]]] = {}  # key -> (who, request id)
        self._arrived: dict[str, dict[Who, tuple[int, int]]] = {}  # gate -> who -> (request id, vote)

    def handle(self, process: Who, q: StoreRequest) -> list[tuple[Who, StoreReply]]:
        match q.op:
            case "set":
                return [(process, StoreReply(id=q.id)), *self._put(q.key, q.value)]
            case "append":
                value = self._values.get(q.key, b"") + q.value
                return [(process, StoreReply(id=q.id)), *self._put(q.key, value)]
            case "get":
                if q.key in self._values:
                    return [(process, StoreReply(id=q.id, value=self._values[q.key]))]
                self._waiting.setdefault(q.key, []).append((process, q.id))
                return []
            case "add":
                return self._add(process, q)
            case "check":
                return [(process, StoreReply(id=q.id, number=int(q.key in self._values)))]
            case "delete":
                return [(process, StoreReply(id=q.id, number=int(self._values.pop(q.key, None) is not None)))]
            case "count":
                return [(process, StoreReply(id=q.id, number=len(self._values)))]
            case "compare_set":
                old = self._values.get(q.key)
                if (old is None and not q.expected) or old == q.expected:
                    return [(process, StoreReply(id=q.id, value=q.value)), *self._put(q.key, q.value)]
                return [(process, StoreReply(id=q.id, value=old if old is not None else q.expected))]
            case "arrive":
                return self._arrive(process, q)
        return [(process, StoreReply(id=q.id, error=f"unknown store operation {q.op}"))]

    def _add(self, process: Who, q: StoreRequest) -> list[tuple[Who, StoreReply]]:
        try:
            number = int(self._values.get(q.key, b"0")) + q.amount
        except ValueError:
            return [(process, StoreReply(id=q.id, error=f"cannot add to {q.key!r}: its value is not a number"))]
        if not -(1 << 63) <= number < 1 << 63:
            return [(process, StoreReply(id=q.id, error=f"cannot add to {q.key!r}: out of range"))]
        return [(process, StoreReply(id=q.id, number=number)), *self._put(q.key, str(number).encode())]

    def _put(self, key: str, value: bytes) -> list[tuple[Who, StoreReply]]:
        """Store a value; the answers are those that waited for it."""
        self._values[key] = value
        return [(p, StoreReply(id=i, value=value)) for p, i in self._waiting.pop(key, [])]

    def _arrive(self, process: Who, q: StoreRequest) -> list[tuple[Who, StoreReply]]:
        here = self._arrived.setdefault(q.key, {})
        here[process] = (q.id, q.amount)
        if len(here) < self._world_size:
            return []
        votes = {vote for _, vote in here.values()}
        agreed = votes.pop() if len(votes) == 1 else 0
        del self._arrived[q.key]
        return [(p, StoreReply(id=i, number=agreed)) for p, (i, _) in here.items()]
