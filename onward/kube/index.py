"""An index over an informer: the objects that share something, found without looking at all the others."""

from __future__ import annotations

from collections.abc import Callable

from onward.kube.informer import Informer
from onward.kube.objects import Obj, controller_of, key_of


class Index:
    """`group` names what an object belongs to; an empty name belongs to nothing."""

    def __init__(self, informer: Informer, group: Callable[[Obj], str]) -> None:
        self._group = group
        self._members: dict[str, dict[str, Obj]] = {}
        self._of: dict[str, str] = {}  # key of an object -> its group
        for obj in informer:
            self._on_change(None, obj)
        informer.subscribe_first(self._on_change)

    def __getitem__(self, group: str) -> list[Obj]:
        return list(self._members.get(group, {}).values())

    def _on_change(self, old: Obj | None, new: Obj | None) -> None:
        known = new if new is not None else old
        if known is None:
            return
        key = key_of(known)
        before = self._of.pop(key, "")
        if before:
            self._members[before].pop(key, None)
            if not self._members[before]:
                del self._members[before]
        group = self._group(new) if new is not None else ""
        if group:
            self._of[key] = group
            self._members.setdefault(group, {})[key] = known


def by_controller(obj: Obj) -> str:
    """The uid of its owner."""
    owner = controller_of(obj)
    return str(owner.get("uid", "")) if owner is not None else ""
