"""Which pods of a job are lost, and whether that is forgiven: the meters `fault-retry-times` and `backoffLimit`.

Pods that are lost together, or while others are still being replaced, are one *wave*. A pod carries the number of the
wave that it was made in. So whether a loss has been counted can be read off the pods and the record, by anybody, at
any time: what is lost with the newest number is new, and so is any loss after all pods of the newest wave were there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onward.core.jobs import Insight, Place, PodSeen, Record, Seen, Wanted

RETRYABLE = range(128, 256)  # exit codes that restartPolicy ExitCode calls a passing trouble
REFUSED_S = 10.0  # a pod that its node would not have is made anew no sooner, for it may be refused again
AT_ONCE = 3  # waves after which a program that fails as soon as it starts is started again more and more slowly
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 60.0
UNBUDGETED = 3  # waves of failed programs that somebody inside should have mended, where no limit was given


@dataclass(frozen=True)
class Loss:
    """A place whose pod is lost. `kind`: failed (its program), evicted, gone, node, unfit, left or outdated."""

    place: Place
    kind: str
    text: str
    pod: PodSeen | None = None

    @property
    def blames_node(self) -> bool:
        return self.kind in ("node", "unfit")


def find_losses(job: Wanted, seen: Seen) -> list[Loss]:
    """Losses that have not been counted yet, in the order of places."""
    found = []
    here = {pod.place: pod for pod in seen.pods if pod.place is not None}
    launched = seen.record.launched == seen.record.wave
    for place in job.places():
        pod = here.get(place)
        if pod is None:
            if launched and not seen.record.is_done(place):
                found.append(Loss(place, "gone", "its pod was deleted"))
        elif launched or pod.wave >= seen.record.wave:  # once all were there, each loss is a new one
            loss = _loss(job, place, pod, seen)
            if loss is not None:
                found.append(loss)
    return found


def why_lost(job: Wanted, pod: PodSeen, seen: Seen) -> str:
    """Why this pod cannot stay; empty when it can. Whether it has been counted is another question."""
    loss = _loss(job, pod.place, pod, seen) if pod.place is not None else None
    return loss.text if loss is not None else ""


def has_done(pod: PodSeen, record: Record) -> bool:
    """Its work. A program that ends well because it is told to end has not; that of ours knows the difference."""
    manned = record.begun == record.floor
    return pod.phase == "Succeeded" and (manned or not pod.dismissed)


def has_met(pods: Iterable[PodSeen], seen: Seen) -> bool:
    """Whether one of these may know where the job is, by the last word of its manager: who came too late does not."""
    told = seen.insight or seen.lately
    return told is None or not told.pods or any(p.uid in told.pods for p in pods)


def _loss(job: Wanted, place: Place, pod: PodSeen, seen: Seen) -> Loss | None:
    unfit = seen.insight.unfit.get(pod.uid, "") if seen.insight is not None else ""
    if has_done(pod, seen.record):
        return None
    if pod.over:
        code = f"exit code {pod.exit_code}" if pod.exit_code is not None else ""
        text = ", ".join(t for t in (code, pod.text) if t) or "it has failed"
        if pod.dismissed and not pod.evicted:
            return Loss(place, "gone", "its pod was deleted", pod)
        return Loss(place, "evicted" if pod.evicted else "failed", text, pod)
    if pod.deleting is not None:
        return Loss(place, "gone", "its pod was deleted", pod)
    if pod.outdated and not pod.node:
        return Loss(place, "outdated", "its template was changed before it had a node", pod)
    if unfit:
        return Loss(place, "unfit", unfit, pod)
    left = seen.insight.left.get(pod.uid, "") if seen.insight is not None else ""
    if left:
        return Loss(place, "left", left, pod)
    why = _why_leave_node(job, pod, seen)
    return Loss(place, "node", why, pod) if why else None


def _why_leave_node(job: Wanted, pod: PodSeen, seen: Seen) -> str:
    """Where nobody asked for rescheduling, Kubernetes itself takes pods away from lost nodes, in its own time."""
    if not pod.node or not (job.fault_scheduling in ("grace", "force") or job.recovers):
        return ""
    node = seen.nodes.get(pod.node)
    if node is None:
        return f"node {pod.node} exists no more"
    if node.fenced:
        return f"node {pod.node} is out of service"
    if not node.ready:
        return f"node {pod.node} is not ready"
    if node.trouble:
        return f"node {pod.node}: {node.trouble}"
    if node.sub_health and job.leaves_sub_health:
        return f"node {pod.node} is worse than it should be: {node.sub_health}"
    return ""


@dataclass(frozen=True)
class Verdict:
    """`fatal`: the job has failed, and why. `hold_until`: it cannot be told yet. Else a new wave begins."""

    fatal: str = ""
    hold_until: float | None = None
    everybody: bool = False  # all pods start again
    charged: bool = False  # it counts against the limit
    failure: bool = False  # and against the forgiven failures
    message: str = ""  # for the condition
    why: str = ""


def judge(job: Wanted, losses: list[Loss], seen: Seen, now: float) -> Verdict:
    """What the loss of these pods means."""
    told = _in_words(losses)
    if job.fault_scheduling == "off":
        return Verdict(fatal=_has_failed(job), why=f"{told}; fault-scheduling is off")
    refused = [loss.pod.made_at for loss in losses if loss.pod is not None and loss.pod.refused]
    if len(refused) == len(losses) and now < max(refused) + REFUSED_S:
        return Verdict(hold_until=max(refused) + REFUSED_S, why=f"{told}; another is not made at once")
    failed = [loss for loss in losses if loss.kind == "failed"]
    insight, fresh = seen.insight, now < seen.insight_until
    if insight is None and fresh and seen.lately is not None and (seen.lately.over or not failed):
        insight = seen.lately  # a pod that is gone may have been the one with the manager: another takes over
    somebody = any(not pod.over and pod.deleting is None for pod in seen.pods)
    if insight is None and fresh and somebody and (job.recovers or failed):
        return Verdict(hold_until=seen.insight_until, why=f"{told}; waiting for what the job's manager says")
    goes_on = insight is not None and insight.recovers and not insight.over
    if failed and not goes_on:
        return _judge_failed(job, failed, seen, insight, told, now)
    limit = job.backoff_limit or job.retry_times
    if not goes_on and limit and seen.record.charged >= limit:
        return _past_limit(job, told)
    message = f"Job {job.key} is restarting because {told}."
    everybody = not goes_on and _everybody(job, insight)
    return Verdict(everybody=everybody, charged=not goes_on, message=message, why=told)


def judge_hopeless(job: Wanted, seen: Seen) -> Verdict:
    """All pods run, but those who knew where the job was are gone: it begins anew."""
    limit = job.backoff_limit or job.retry_times
    if limit and seen.record.charged >= limit:
        return _past_limit(job, seen.hopeless)
    message = f"Job {job.key} is restarting because {seen.hopeless}."
    return Verdict(everybody=True, charged=True, message=message, why=seen.hopeless)


def pause_s(waves: int) -> float:
    """How long a pod is to have lived, after so many waves, for another to be made at once."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(waves - AT_ONCE, 16)) if waves >= AT_ONCE else 0.0


def _judge_failed(
    job: Wanted, failed: list[Loss], seen: Seen, insight: Insight | None, told: str, now: float
) -> Verdict:
    """Programs have failed, and nobody inside goes on without them."""
    record = seen.record
    by_code = all(_retryable(job, loss) for loss in failed)
    unlimited = not (job.retry_times or job.backoff_limit)
    mended_inside = job.keeps_others and (not unlimited or record.failures < UNBUDGETED)
    forgiven = by_code or job.retry_times > 0 or mended_inside
    if not forgiven:
        spent = f"{UNBUDGETED} waves are forgiven where neither fault-retry-times nor backoffLimit is set"
        return Verdict(fatal=_has_failed(job), why=f"{told}; {spent if job.keeps_others else 'no retry is allowed'}")
    limit = job.backoff_limit or job.retry_times
    if job.retry_times and not by_code and record.failures >= job.retry_times:
        text = f"Job {job.key} has failed because pod failed and remain retry times is 0."
        return Verdict(fatal=text, why=f"{told}; fault-retry-times {job.retry_times} is used up")
    if limit and record.charged >= limit:
        return _past_limit(job, told)
    if by_code:
        names = ", ".join(dict.fromkeys(loss.place[0] for loss in failed))
        message = f"Job {job.name} is restarting because {names} replica(s) failed."
    elif job.retry_times:
        left = job.retry_times - record.failures
        message = f"Job {job.key} is unconditional retry job and remain retry times is <{left}>."
    else:
        message = f"Job {job.key} is restarting because {told}."
    due = max(loss.pod.made_at for loss in failed if loss.pod is not None) + pause_s(record.charged)
    if now < due:
        return Verdict(hold_until=due, message=message, why=f"{told}; another is not made at once")
    everybody = not by_code and _everybody(job, insight)
    return Verdict(everybody=everybody, charged=True, failure=not by_code, message=message, why=told)


def _has_failed(job: Wanted) -> str:
    return f"Job {job.key} has failed because has pod failed."


def _past_limit(job: Wanted, told: str) -> Verdict:
    text = f"Job {job.name} has failed because it has reached the specified backoff limit"
    limit = job.backoff_limit or job.retry_times
    allowed = "1 wave of lost pods was allowed" if limit == 1 else f"{limit} waves of lost pods were allowed"
    return Verdict(fatal=text, why=f"{told}; {allowed}")


def _everybody(job: Wanted, insight: Insight | None) -> bool:
    """When it is over inside, nobody is left who could go on."""
    return not job.keeps_others or (insight is not None and insight.over)


def _retryable(job: Wanted, loss: Loss) -> bool:
    code = loss.pod.exit_code if loss.pod is not None else None
    return job.role(loss.place[0]).restart == "ExitCode" and code is not None and code in RETRYABLE


def _in_words(losses: Iterable[Loss]) -> str:
    """`Worker 1 failed (exit code 137)`, and how many more."""
    every = list(losses)
    first = every[0]
    verb = {"failed": "failed", "evicted": "was evicted", "gone": "is gone", "node": "has lost its node"}
    words = verb.get(first.kind, "has to be replaced")
    more = f", and {len(every) - 1} more" if len(every) > 1 else ""
    return f"{first.place[0]} {first.place[1]} {words} ({first.text}){more}"
