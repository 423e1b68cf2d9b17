"""Hot switch, as far as pods go: beside which of them another gets ready, and how long it stays (inside: `switch`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onward.core.jobs import Place, PodSeen, Record, Seen, Wanted


def to_relieve(job: Wanted, seen: Seen, here: Mapping[Place, PodSeen]) -> Iterator[tuple[Place, PodSeen, str]]:
    """Pods that train on, but not as well as they should, and why. One stand-in for each, whatever became of it."""
    if seen.insight is None or not job.hot_switch or job.fault_scheduling == "off":
        return
    served = {p.stands_in for p in seen.pods}
    for place, pod in here.items():
        why = seen.insight.ailing.get(pod.uid, "")
        if why and place not in served and pod.phase == "Running" and pod.deleting is None:
            yield place, pod, why


def may_stay(job: Wanted, seen: Seen, here: Mapping[Place, PodSeen], record: Record, pod: PodSeen) -> bool:
    """A pod without a place: a stand-in stays while it is wanted; what nobody can tell now is left as it is.

    And one that was relieved stays until all train again: the manager may be in it.
    """
    insight = seen.insight
    if job.hot_switch and insight is not None and insight.incident and pod.wave >= record.floor:
        return True
    holder = here.get(pod.stands_in) if pod.stands_in is not None else None
    if holder is None or holder.over or pod.wave < record.floor:
        return False
    return insight is None or holder.uid in insight.ailing or pod.uid in insight.placed
