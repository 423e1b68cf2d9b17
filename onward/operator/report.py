"""The status of a job, from a plan. The last condition is always one of the five states; others stand before it."""

from __future__ import annotations

from collections.abc import Sequence

from onward.api.status import Condition, update
from onward.core.jobs import OVER, SUCCEEDED, Plan, Seen, Wanted
from onward.kube.objects import Obj, stamp
from onward.operator.views import spans


def status(old: Obj, wanted: Wanted, seen: Seen, plan: Plan, now: float) -> Obj:
    """All of it, with the fields of others kept. Equal to `old` when there is nothing to write."""
    new = {**old, "conditions": _conditions(old.get("conditions") or [], plan, now)}
    new["replicaStatuses"] = _counts(wanted, seen, plan)
    record = plan.record
    for field, at in (("startTime", record.started_at), ("completionTime", record.ended_at)):
        if at is not None:
            new[field] = stamp(at)
        else:
            new.pop(field, None)
    runs = sum(1 for p in seen.pods if p.place is not None and p.phase == "Running" and p.deleting is None)
    ended = sum(len(indices) for _, indices in record.done)  # also those whose pods are deleted by now
    new["ready"] = f"{ended if plan.word is not None and plan.word.type == SUCCEEDED else runs}/{wanted.total}"
    new["restarts"] = record.charged
    over = plan.word is not None and plan.word.type in OVER
    last = seen.insight or (seen.lately if over else None)  # how far it came stays to be read
    told = last.report if last is not None else {}
    new |= {name: value for name, value in told.items() if value is not None}
    if over or wanted.suspend or not new.get("policy"):
        new.pop("policy", None)
    kept: Obj = {
        "wave": record.wave,
        "floor": record.floor,
        "launched": record.launched,
        "shape": record.shape,
        "charged": record.charged,
        "failures": record.failures,
        "told": record.told,
    }
    kept |= {name: n for name, n in (("opened", record.opened), ("closed", record.closed)) if n}
    kept |= {name: n for name, n in (("begun", record.begun), ("free", record.free)) if n >= 0}
    if record.done:
        kept["done"] = {role: spans(indices) for role, indices in record.done}
    for name, marked in (("avoid", record.avoid), ("shun", record.shun)):
        if marked:
            kept[name] = {node: stamp(at) for node, at in marked}
    new["record"] = kept
    return new


def _conditions(old: Sequence[Obj], plan: Plan, now: float) -> list[Obj]:
    known = {c.get("type") for c in old}
    extras = [
        Condition(e.type, e.reason, e.message, "True" if e.holds else "False")
        for e in plan.extras
        if e.holds or e.type in known  # that something is not the case is said where it was
    ]
    word = plan.word
    state = Condition(word.type, word.reason, word.message) if word is not None else None
    return update(old, state, extras, stamp(now))


def _counts(wanted: Wanted, seen: Seen, plan: Plan) -> Obj:
    found: Obj = {role.name: {} for role in wanted.roles}
    done = dict(plan.record.done)
    for role in wanted.roles:
        own = [p for p in seen.pods if p.place is not None and p.place[0] == role.name]
        counts = {
            "active": sum(1 for p in own if p.phase == "Running"),
            "succeeded": len(done.get(role.name, ())),
            "failed": sum(1 for p in own if p.phase == "Failed"),
        }
        found[role.name] = {name: n for name, n in counts.items() if n}
    return found
