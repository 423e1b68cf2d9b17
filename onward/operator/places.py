"""Which pod of a job holds which place. By name, as labels can be changed by anybody; there are two names for a place.

The second is for a pod that gets ready beside one that still trains, to take over from it (hot switch). Which of the
two holds the place is what the job's manager says; until it can be heard, the one that was there first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onward.api.job import Job, Problem
from onward.api.pods import HOT
from onward.core.jobs import Place
from onward.kube.objects import Obj, name_of, uid_of
from onward.operator.views import over

Seat = tuple[Place | None, Place | None]  # the place that a pod holds, and the one that it gets ready for


def seats(own: Iterable[Obj], read: Job | list[Problem], placed: Collection[str]) -> dict[str, Seat]:
    """By uid. `placed`: the uids of those who hold a place by the word of the manager."""
    found: dict[str, Seat] = {}
    there: dict[Place, list[Obj]] = {}
    for pod in own:
        place = _place(pod, read)
        found[uid_of(pod)] = (place, None)
        if place is not None:
            there.setdefault(place, []).append(pod)
    for place, several in there.items():
        if len(several) > 1:
            holder = _holder(several, placed)
            for pod in several:
                if pod is not holder:  # one that was there before it has been relieved
                    found[uid_of(pod)] = (None, place if _made_at(pod) >= _made_at(holder) else None)
    return found


def _place(pod: Obj, read: Job | list[Problem]) -> Place | None:
    if isinstance(read, list):
        return None
    head, _, number = name_of(pod).removesuffix(HOT).rpartition("-")
    for replica in read.replicas:
        if head == f"{read.name}-{replica.lower}" and number.isdecimal() and int(number) < replica.count:
            return (replica.name, int(number)) if number == str(int(number)) else None
    return None


def _holder(several: list[Obj], placed: Collection[str]) -> Obj:
    by_word = [pod for pod in several if uid_of(pod) in placed]
    if len(by_word) == 1:
        return by_word[0]
    staying = [pod for pod in several if not over(pod) and not pod["metadata"].get("deletionTimestamp")]
    return min(staying or several, key=_made_at)


def _made_at(pod: Obj) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")
