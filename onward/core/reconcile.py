"""What follows for a job in a cluster, from what is wanted and what is seen. Pure, and the same when asked again.

`decide` is level-triggered: it does not know what has happened, only what is. What it must remember is in the `Record`,
which is written before anything that follows from it; so whoever is killed between any two writes, or reads something
that is no longer true, is corrected by the next pass, and counts nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onward.core.jobs import (
    CREATED,
    FAILED,
    OVER,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    DropGang,
    DropJob,
    DropPod,
    Extra,
    Insight,
    MakeGang,
    MakePod,
    MakeSecret,
    MakeService,
    Place,
    Plan,
    PodSeen,
    Record,
    Said,
    Seen,
    Wanted,
    Word,
    Write,
)
from onward.core.losses import Loss, find_losses, has_done, has_met, judge, judge_hopeless, why_lost
from onward.core.reasons import just_created, why_not_yet
from onward.core.relief import may_stay, to_relieve

FENCE_S = 30.0  # a pod that should be gone, on a node that does not answer, is taken away after so long
AVOID_S = 24 * 3600.0
AVOID_MOST = 32
Marked = tuple[tuple[str, float], ...]  # (node, when)
SUSPENDED = "JobSuspended"
AS_IT_SHOULD_BE = ("JobCreated", "JobRunning", "JobSucceeded", SUSPENDED)
WAITING_GANG = ("", "Pending")


def decide(job: Wanted, seen: Seen, now: float) -> Plan:
    """All that is to be done now. See the module's docstring."""
    if seen.ends:
        return Plan(seen.record, seen.word, why=(seen.ends,), hands_off=True)
    draft = _Draft(job, _without_the_past(seen), now)
    if seen.word is not None and seen.word.type in OVER:
        draft.after_end()
    elif job.problems:
        draft.refuse()
    elif job.suspend:
        draft.suspend()
    else:
        draft.go_on()
    return draft.plan()


def _without_the_past(seen: Seen) -> Seen:
    """The manager of pods that were all to go has nothing to say about those that have begun anew since."""
    floor = seen.record.floor
    if seen.record.begun == floor:
        return seen

    def counts(insight: Insight) -> bool:
        return not insight.pods or any(p.uid in insight.pods for p in seen.pods if p.wave >= floor)

    insight, lately = (i if i is None or counts(i) else None for i in (seen.insight, seen.lately))
    return replace(seen, insight=insight, lately=lately)


@dataclass
class _Draft:
    """One plan while it is being made."""

    job: Wanted
    seen: Seen
    now: float
    writes: list[Write] = field(default_factory=list)
    events: list[Said] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    again_s: float | None = None

    def __post_init__(self) -> None:
        self.record: Record = self.seen.record
        self.word: Word | None = self.seen.word
        self.held: set[Place] = set()
        self.here: dict[Place, PodSeen] = {p.place: p for p in self.seen.pods if p.place is not None}

    def plan(self) -> Plan:
        if self.word is not None and self.word != self.seen.word:
            quiet = self.word.type == CREATED and self.seen.word is not None and self.word.reason == "JobCreated"
            if not quiet:
                warns = self.word.reason not in AS_IT_SHOULD_BE
                self.events.insert(0, Said(self.word.reason, self.word.message, warns))  # of many, the one that counts
        return Plan(
            record=self.record,
            word=self.word,
            extras=tuple(self.extras),
            writes=tuple(self.writes),
            events=tuple(self.events),
            why=tuple(self.why),
            again_s=self.again_s,
        )

    # ------------------------------------------------------------------------------------------ ways to go

    def refuse(self) -> None:
        """It cannot be run as it is written. All problems are told."""
        for reason, message in self.job.problems:
            self.events.append(Said(reason, message, warning=True))
        text = "; ".join(f"{reason}: {message}" for reason, message in self.job.problems)
        self.record = replace(self.record, told=self.seen.generation)
        self._fail("JobValidFailed", text)

    def suspend(self) -> None:
        self._begin()
        if self.word is None or self.word.reason != SUSPENDED:  # the pods that go now are not lost
            wave = self.record.wave + 1
            self.record = replace(self.record, wave=wave, floor=wave, launched=-1, done=(), shape=self.job.shape)
        self.record = replace(self.record, started_at=None)
        self.word = Word(CREATED, SUSPENDED, f"Job {self.job.key} is suspended.")
        self.extras.append(Extra("Suspended", True, SUSPENDED, "spec.runPolicy.suspend is true: no pods for now"))
        self._say_no_more(("GangScheduled", "Recovering", "Degraded"), SUSPENDED, "the job is suspended")
        for pod in self.seen.pods:
            self._drop(pod, "the job is suspended")
        if self.seen.gang is not None:
            self.writes.append(DropGang())

    def go_on(self) -> None:
        self._begin()
        if self._past_deadline():
            return
        self._mind_shape()
        self._mind_beginning()
        if self._mind_losses() or self._mind_success():
            return
        self._mind_survivors()
        self._remove_pods()
        ready = self._make_surroundings()
        if ready:
            self._make_pods()
            self._make_stand_ins()
        self._mind_launch()
        self._say_state(ready)

    def after_end(self) -> None:
        """A job that has failed holds nothing. What its pods have written stays, unless it is not wanted."""
        assert self.word is not None
        if self.record.ended_at is None:
            self.record = replace(self.record, ended_at=self.now)
        for pod in self.seen.pods:
            unwanted = self.job.clean_pods == "All"
            if not pod.over or pod.lingers:
                running = pod.phase == "Running" or pod.lingers
                unwanted = unwanted or not (running and self.job.clean_pods == "None" and self.word.type == SUCCEEDED)
            if unwanted or pod.deleting is not None:
                self._drop(pod, "the job has ended")
        if self.seen.gang is not None:
            self.writes.append(DropGang())
        if self.job.ttl_s is not None:
            assert self.record.ended_at is not None
            left_s = self.record.ended_at + self.job.ttl_s - self.now
            if left_s <= 0:
                self.writes.append(DropJob())
                self.why.append(f"it ended more than ttlSecondsAfterFinished, {self.job.ttl_s} s, ago")
            else:
                self._again(left_s)

    # ------------------------------------------------------------------------------------------ its steps

    def _begin(self) -> None:
        if self.record.started_at is None and not self.job.suspend:
            self.record = replace(self.record, started_at=self.now)
        if self.word is None:
            self.word = just_created(self.job)
        elif self.word.reason == SUSPENDED and not self.job.suspend:
            self.word = just_created(self.job)
            self.extras.append(Extra("Suspended", False, "JobResumed", "spec.runPolicy.suspend is no longer true"))
            self.events.append(Said("JobResumed", f"Job {self.job.key} is resumed."))
        if self.record.told != self.seen.generation:
            self.events += [Said(reason, message) for reason, message in self.job.notes]
            self._say_who_goes_on_as_before()
            self.record = replace(self.record, told=self.seen.generation)

    def _say_who_goes_on_as_before(self) -> None:
        stays = [p for p in self.here.values() if p.node and not p.over and p.wave >= self.record.floor]
        earlier = sum(p.outdated for p in stays)
        if earlier and self.record.shape == self.job.shape and not self.job.suspend:
            text = f"the template was changed: {earlier} pods that have a node run on; it is for those made from now on"
            self.events.append(Said("TemplateChanged", f"Job {self.job.key}: {text}."))

    def _fail(self, reason: str, message: str) -> None:
        self.word = Word(FAILED, reason, message)
        self._end()

    def _end(self) -> None:
        """The state is written first; what follows from it in the next pass, which comes at once."""
        self._say_no_more(("Recovering",), "JobEnded", "the job has ended")
        self.record = replace(self.record, ended_at=self.now)
        self._again(0.0)

    def _past_deadline(self) -> bool:
        if self.job.deadline_s is None or self.record.started_at is None:
            return False
        left_s = self.record.started_at + self.job.deadline_s - self.now
        if left_s > 0:
            self._again(left_s)
            return False
        limit = f"activeDeadlineSeconds, {self.job.deadline_s} s"
        self._fail("JobFailed", f"Job {self.job.key} has failed because it was active longer than {limit}")
        return True

    def _mind_shape(self) -> None:
        """Another number of pods: each of them has been told how many there are, so all are made anew."""
        job, record = self.job, self.record
        if record.shape == job.shape:
            return
        self.record = replace(record, shape=job.shape)
        if record.shape and (self.seen.pods or record.launched >= 0):
            text = f"the replicas were changed from {record.shape} to {job.shape}: all pods start again"
            self.record = replace(self.record, wave=record.wave + 1, floor=record.wave + 1, done=())
            self.word = Word(RESTARTING, "jobRestarting", f"Job {job.key} is restarting because {text}.")
            self.why.append(text)

    def _mind_beginning(self) -> None:
        """Somebody is in charge inside the pods that stay: a pod that comes later joins, and begins nothing."""
        known = self.seen.insight.pods if self.seen.insight is not None else frozenset()
        if any(p.uid in known and p.wave >= self.record.floor for p in self.here.values()):
            self.record = replace(self.record, begun=self.record.floor)

    def _mind_losses(self) -> bool:
        """Count what was lost. True: the job has failed with it."""
        found = find_losses(self.job, replace(self.seen, record=self.record))
        losses = [loss for loss in found if loss.kind != "outdated"]
        if found and not losses:
            self._renew(len(found))
            return False
        if losses:
            verdict = judge(self.job, losses, self.seen, self.now)
        elif self.seen.hopeless and all(p.wave >= self.record.floor for p in self.here.values()):
            verdict = judge_hopeless(self.job, self.seen)
        else:
            return False
        self.why.append(verdict.why)
        if verdict.hold_until is not None:
            self._again(verdict.hold_until - self.now)
            self.held = {loss.place for loss in losses}  # a new pod there would hide the loss
            if verdict.message:
                self.word = Word(RESTARTING, "jobRestarting", verdict.message)
            return False
        if verdict.why not in verdict.fatal + verdict.message:  # words that people know, and which pod it was
            self.events.append(Said("PodLost", f"Job {self.job.key}: {verdict.why}.", warning=True))
        if verdict.fatal:
            self._fail("JobFailed", verdict.fatal)
            return True
        r = self.record
        self.record = replace(
            r,
            wave=r.wave + 1,
            floor=r.wave + 1 if verdict.everybody else r.floor,
            charged=r.charged + verdict.charged,
            free=r.free if verdict.charged else r.wave + 1,
            failures=r.failures + verdict.failure,
            done=() if verdict.everybody else r.done,
            avoid=self._marked(r.avoid, [loss for loss in losses if loss.blames_node]),
            shun=self._marked(r.shun, [loss for loss in losses if loss.kind == "left"]),
        )
        self.word = Word(RESTARTING, "jobRestarting", verdict.message)
        return False

    def _renew(self, outdated: int) -> None:
        """Pods that nobody has placed yet are made from the template of today. Nothing was lost with them."""
        r, all_wait = self.record, not any(p.node for p in self.here.values())
        text = f"the template was changed: {outdated} pods that had no node yet are made anew"
        self.record = replace(r, wave=r.wave + 1, floor=r.wave + 1 if all_wait else r.floor, free=r.wave + 1)
        self.why.append(text)
        self.events.append(Said("TemplateChanged", f"Job {self.job.key}: {text}."))

    def _mind_survivors(self) -> None:
        """Pods that replace others are told where those are who go on. When none of these is left, all begin anew."""
        r = self.record
        if r.floor == r.wave or r.launched == r.wave or r.launched < 0:
            return
        staying = [p for p in self.here.values() if p.deleting is None and not self._why_remove(p)]
        before = [p for p in staying if p.wave < r.wave]
        if before and (has_met(before, self.seen) or self._wait_for_word()):
            return
        self.why.append("nobody is left who could go on: all pods start again")
        charged = r.charged + (r.free == r.wave)  # it cost nothing because somebody went on
        wave = r.wave + 1 if staying else r.wave
        self.record = replace(r, wave=wave, floor=wave, done=(), charged=charged, free=-1)

    def _wait_for_word(self) -> bool:
        """Whether a manager may still say that those who are left were let in. No pod is to find them meanwhile."""
        seen = self.seen
        if seen.insight is not None:
            if not any(p.deleting is not None for p in seen.pods):
                return True  # it goes on, with whomever
        elif self.now < seen.insight_until:
            self._again(seen.insight_until - self.now)
        else:
            return False
        self.held |= {place for place in self.job.places() if place not in self.here}
        return True

    def _marked(self, before: Marked, losses: list[Loss]) -> Marked:
        """Nodes, with those of these pods, as of now."""
        bad = {loss.pod.node: self.now for loss in losses if loss.pod is not None}
        kept = {node: at for node, at in before if self.now - at < AVOID_S}
        newest = sorted((kept | bad).items(), key=lambda item: (item[1], item[0]))
        return tuple(newest[-AVOID_MOST:])

    def _mind_success(self) -> bool:
        """All pods have ended well. Where fewer than all may go on, those that never found a place do not count."""
        done: dict[str, set[int]] = {}
        rest: list[PodSeen | None] = []
        for role, index in self.job.places():
            pod = self.here.get((role, index))
            current = pod is not None and pod.wave >= self.record.floor
            if (pod is not None and current and has_done(pod, self.record)) or (
                pod is None and self.record.is_done((role, index))
            ):
                done.setdefault(role, set()).add(index)
            else:
                rest.append(pod)
        self.record = replace(self.record, done=tuple((role, tuple(sorted(done[role]))) for role in sorted(done)))
        without = self.job.elastic and done and all(p is None or (p.phase == "Pending" and not p.node) for p in rest)
        if rest and not without:
            return False
        self.word = Word(SUCCEEDED, "JobSucceeded", f"Job {self.job.key} successfully completed.")
        self._end()
        return True

    def _remove_pods(self) -> None:
        for pod in self.seen.pods:
            why = self._why_remove(pod)
            if why or pod.deleting is not None:
                self._drop(pod, why or "it was deleted")

    def _why_remove(self, pod: PodSeen) -> str:
        if pod.place is None:
            return "" if may_stay(self.job, self.seen, self.here, self.record, pod) else "the job has no place for it"
        if pod.wave < self.record.floor:
            return "all pods start again"
        if pod.wave < self.record.wave and pod.place not in self.held:
            return why_lost(self.job, pod, self.seen)
        return ""

    def _make_surroundings(self) -> bool:
        """What pods need before they can be made. True when it is there."""
        seen, ready = self.seen, True
        if not seen.secret:
            self.writes.append(MakeSecret())
        if self.job.service and not seen.service:
            self.writes.append(MakeService())
            ready = False
        self._mind_service()
        if self.job.gang:
            if seen.gang is None or not seen.gang.current:
                self.writes.append(MakeGang(change=seen.gang is not None))
            waits = seen.gang is None or seen.gang.phase in WAITING_GANG
            ready = ready and not (waits and self.record.launched < 0)
        return ready

    def _mind_service(self) -> None:
        """A stand-in that leads is labelled otherwise than the old pod, which is led to while it is there."""
        holder = self.here.get(self.job.leader) if self.job.leader is not None else None
        now = self.seen.leads_to
        if holder is None or holder.over or holder.deleting is not None or not holder.index or not now:
            return
        relieved = [p for p in self.seen.pods if p.place is None and p.index == now and not p.over]
        if holder.index != now and not relieved:
            self.writes.append(MakeService(holder.index))

    def _make_pods(self) -> None:
        r = self.record
        avoid, shun = self._lately(r.avoid), self._lately(r.shun)
        for place in self.job.places():
            if place not in self.here and place not in self.held and not r.is_done(place):
                prefer = self.seen.previous.get(place, "")
                prefer = "" if prefer in (*avoid, *shun) else prefer
                self.writes.append(MakePod(place, r.wave, prefer, avoid, r.floor, r.begun == r.floor, shun=shun))

    def _lately(self, marked: Marked) -> tuple[str, ...]:
        return tuple(node for node, at in marked if self.now - at < AVOID_S)

    def _make_stand_ins(self) -> None:
        r = self.record
        for place, pod, why in to_relieve(self.job, self.seen, self.here):
            avoid = (*self._lately(r.avoid), pod.node)
            self.writes.append(MakePod(place, r.wave, "", avoid, r.floor, True, pod.name, self._lately(r.shun)))
            self.events.append(Said("StandIn", f"another pod gets ready to take over from {pod.name}: {why}"))

    def _mind_launch(self) -> None:
        """From now on a pod that is missing is one that was lost."""
        if self.record.launched == self.record.wave:
            return
        for place in self.job.places():
            pod = self.here.get(place)
            stays = pod is not None and pod.deleting is None and not self._why_remove(pod)
            if not stays and not self.record.is_done(place):
                return
        self.record = replace(self.record, launched=self.record.wave)

    # ------------------------------------------------------------------------------------------ words

    def _say_state(self, ready: bool) -> None:
        insight = self.seen.insight
        if insight is not None:
            self._say_incidents(insight)
            mended, all_here = "nothing is being mended", "all ranks take part"
            self.extras += [
                Extra("Recovering", bool(insight.recovering), "Recovery", insight.recovering or mended),
                Extra("Degraded", bool(insight.degraded), "Elastic", insight.degraded or all_here),
            ]
        self._say_gang()
        assert self.word is not None
        if self._all_run():
            if self.word.type != RUNNING:
                self.word = Word(RUNNING, "JobRunning", f"Job {self.job.key} is running.")
        elif self.word.type not in (RUNNING, RESTARTING):
            self.word = self._created(ready)

    def _say_no_more(self, types: tuple[str, ...], reason: str, text: str) -> None:
        """What was said of pods that are no more must not stand there as if it held."""
        self.extras += [Extra(each, False, reason, text) for each in types]

    def _say_incidents(self, insight: Insight) -> None:
        if insight.incident and insight.incident != self.record.opened:
            self.events.append(Said("Recovering", insight.recovering, warning=True))
            self.record = replace(self.record, opened=insight.incident)
        if insight.last and insight.last != self.record.closed and insight.last != insight.incident:
            self.events.append(Said("Recovered", insight.story))
            self.record = replace(self.record, closed=insight.last)

    def _say_gang(self) -> None:
        if not self.job.gang:
            return
        bound = sum(1 for p in self.here.values() if p.node or p.over)
        text = f"{bound} of {self.job.total} pods have a node"
        waits = next((p.text for p in self.here.values() if p.phase == "Pending" and not p.node and p.text), "")
        text = f"{text}; {waits}" if waits else text
        self.extras.append(Extra("GangScheduled", bound == self.job.total, "Scheduled" if bound else "Waiting", text))

    def _all_run(self) -> bool:
        def runs(place: Place) -> bool:
            pod = self.here.get(place)
            if pod is None:
                return self.record.is_done(place)
            return pod.phase in ("Running", "Succeeded") and pod.deleting is None and not self._why_remove(pod)

        return all(runs(place) for place in self.job.places()) and not self._uncounted()

    def _uncounted(self) -> bool:
        return any(p.phase == "Failed" for p in self.here.values())

    def _created(self, ready: bool) -> Word:
        word, again_s = why_not_yet(
            self.job, self.seen, self.here.values(), self.record.started_at, ready, self.now
        )
        if again_s is not None:
            self._again(again_s)
        return word

    # ------------------------------------------------------------------------------------------ small parts

    def _drop(self, pod: PodSeen, why: str) -> None:
        """Ask it to end; what does not answer because its node does not is taken away after a while."""
        node = self.seen.nodes.get(pod.node)
        lost = bool(pod.node) and (node is None or node.fenced or not node.ready)
        at_once = lost and (node is None or node.fenced or self.job.fault_scheduling == "force")
        if pod.deleting is None:
            self.writes.append(DropPod(pod.name, pod.uid, why, 0 if at_once else None))
            return
        patience_s = FENCE_S if lost else self.job.grace_s
        left_s = 0.0 if at_once else pod.deleting + patience_s - self.now
        if left_s > 0:
            self._again(left_s)
            return
        silent = f"node {pod.node} does not answer" if lost else f"it did not end within {self.job.grace_s:g} s"
        self.writes.append(DropPod(pod.name, pod.uid, f"{why}; {silent}", 0))
        self.why.append(f"pod {pod.name} is taken away without its node's word: {silent}")

    def _again(self, after_s: float) -> None:
        after_s = max(0.0, after_s)
        self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)
