"""The rendezvous stores that an agent keeps for the generations of its job: only the current one answers."""

from __future__ import annotations

from onward.agent.effects import AnswerPeer, Effect, SendRank
from onward.agent.kvstore import GenerationStore
from onward.wire.messages import Orders, StoreReply, StoreRequest
from onward.wire.peers import PeerReply

Asker = tuple[str, int]  # (agent, process)


class Stores:
    """One store at a time. `me`: the agent it belongs to; others ask through theirs."""

    def __init__(self, me: str) -> None:
        self.refused = 0  # requests from the past
        self._me = me
        self._store: GenerationStore[Asker] | None = None
        self._early: list[tuple[Asker, StoreRequest]] = []  # for a generation that we have not heard of yet

    def on_orders(self, orders: Orders) -> list[Effect]:
        """Who had heard of this generation before us is answered now."""
        early, self._early = self._early, []
        return [e for asker, q in early for e in self.ask(asker, q, orders)]

    def ask(self, asker: Asker, q: StoreRequest, orders: Orders | None) -> list[Effect]:
        now = orders.generation if orders is not None else 0
        if q.generation > now and asker[0] != self._me:
            self._early.append((asker, q))  # the other agent heard of it first
            return []
        last = self._store.generation if self._store is not None else -1
        if q.generation != now and not (q.generation == last and _pausing_softly(orders)):
            self.refused += 1
            state = "over" if q.generation < now else "not the current one"
            return self.reply(asker, StoreReply(id=q.id, error=f"generation {q.generation} is {state}"))
        if self._store is None or self._store.generation != q.generation:
            members = (orders.members or orders.world_size) if orders is not None else 0
            self._store = GenerationStore(q.generation, members)
        return [e for who, reply in self._store.handle(asker, q) for e in self.reply(who, reply)]

    def reply(self, asker: Asker, reply: StoreReply) -> list[Effect]:
        agent, process = asker
        if agent == self._me:
            return [SendRank(process, reply)]
        return [AnswerPeer(agent, PeerReply(process=process, reply=reply))]


def _pausing_softly(orders: Orders | None) -> bool:
    """The ranks of the last generation are to end their step first, and may meet at its gate."""
    return orders is not None and any(o.want == "pause" and o.soft for o in orders.ranks)
