"""Groups of a membership that is still to come, connected beside the training: when it comes, they are exchanged.

A thread of our own does it, in each rank of that membership: all know the group by its name, and no training waits for
it. It is used only where all of them say that it is there; one that cannot be had costs nothing.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from torch.distributed import PrefixStore

from onward.log import get_logger
from onward.train.backends.base import Place
from onward.train.backends.gloo import Gloo
from onward.train.generation import Generation
from onward.train.group import Group
from onward.train.groups import Groups, Made
from onward.train.link import Link
from onward.train.sockets import Connections, Door, door_since, open_sockets
from onward.train.store import LinkStore
from onward.wire.messages import RankOrder

log = get_logger("onward.train")
JOIN_S = 10.0
_GLOO = Gloo()
_listening = threading.Lock()  # one door at a time, or the wrong one is found


class Ahead:
    """One of each rank. All calls come from the thread that trains."""

    def __init__(self, groups: Groups, link: Link) -> None:
        self._groups, self._link = groups, link
        self._name = ""  # what is to be connected, or is
        self._made: Made | None = None
        self._told = False

    @property
    def joined(self) -> str:
        """The name of the groups that are connected."""
        return self._name if self._made is not None else ""

    def concerns(self, order: RankOrder) -> bool:
        """Something is to be done, or to be told."""
        return (bool(order.join) and order.join != self._name) or self._is_news

    @property
    def _is_news(self) -> bool:
        return self._made is not None and not self._told

    def mind(self, order: RankOrder | None) -> bool:
        """Begin when that is wanted. True when it has been done, and nobody was told yet."""
        self.begin_if_wanted(order)
        news = self._is_news
        self._told = self._told or news
        return news

    def begin_if_wanted(self, order: RankOrder | None) -> None:
        if order is None or order.join in ("", self._name):
            return
        self._drop()
        self._name = order.join
        if self._groups.device_backend is None:
            args = (order.join, order.generation, list(self._groups.members))
            threading.Thread(target=self._connect, args=args, name="onward-ahead", daemon=True).start()

    def take(self, name: str) -> Made | None:
        """What is connected under this name. Whatever else is, or will be, is of no use any more."""
        made, there = self._made, self.joined
        if name and there != name:
            raise RuntimeError(f"group {name} is not connected here")
        if not name:
            self._drop()
        self._name, self._made = "", None
        return made if name else None

    def _drop(self) -> None:
        made, self._made, self._told = self._made, None, False
        if made is not None:
            self._groups.drop(made)

    def _connect(self, name: str, number: int, members: list[Group]) -> None:
        made = Made(Generation(0), {})
        store = LinkStore(self._link, lambda: number, JOIN_S)
        try:
            for group in members:
                made.inner[group] = {Gloo.device: (_GLOO, self._connected(group, made.generation, store, name))}
        except (RuntimeError, OSError) as e:  # there is a newer generation, or one of them is gone
            log.info("group %s could not be connected: %s", name, e)
            return
        if self._name == name:
            self._made = made
            self._link.look_again()

    def _connected(self, group: Group, generation: Generation, store: LinkStore, name: str) -> Any:
        """Not told by time which connections are its own: the script may open some meanwhile."""
        groups, me, size = self._groups, group.ranks.index(group.me), len(group.ranks)
        with _listening:
            before = open_sockets()
            device = _GLOO.listen(groups.address)
            mine = door_since(before)
        below = PrefixStore(f"{name}/{group.group_name}", store)
        below.set(f"door/{me}", json.dumps(mine))
        place = Place(below, name, me, size, groups.address, groups.timeout_s, torch.device("cpu"), lambda: "")
        inner = _GLOO.join(place, device)
        doors = [Door(*json.loads(below.get(f"door/{r}"))) for r in range(size) if r != me]
        generation.guard(Connections.among(mine, doors), _GLOO, inner)
        return inner
