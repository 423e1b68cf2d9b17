"""Decisions about a job in a cluster, by situation."""

from __future__ import annotations

from dataclasses import replace

from cluster import CREATED, GOING, NEW, NOW, RUNNING, dropped, made, state
from test_losses import ALL, CRASHED, GRACE, JOB, LOST, NODES, PODS

from onward.core.jobs import (
    DropGang,
    DropJob,
    DropPod,
    Gang,
    Insight,
    MakeGang,
    MakePod,
    MakeSecret,
    MakeService,
    NodeSeen,
    Plan,
    PodSeen,
    Word,
)
from onward.core.reconcile import FENCE_S, decide


def test_a_new_job_is_first_given_its_surroundings() -> None:
    plan = decide(JOB, NEW, NOW)
    assert plan.writes == (MakeSecret(), MakeService(), MakeGang())
    assert state(plan) == ("Created", "JobCreated")
    assert plan.record.started_at == NOW


def test_running_means_that_all_run() -> None:
    some = replace(GOING, word=CREATED, pods=(*PODS[:2], replace(PODS[2], phase="Pending")))
    assert state(decide(JOB, some, NOW))[0] == "Created"
    assert state(decide(JOB, replace(some, pods=PODS), NOW)) == ("Running", "JobRunning")


def test_nothing_to_do_is_nothing() -> None:
    plan = decide(JOB, GOING, NOW)
    assert (plan.writes, plan.events, plan.record, plan.word) == ((), (), GOING.record, RUNNING)


def test_all_start_again_when_nobody_inside_goes_on() -> None:
    job = replace(JOB, retry_times=1)
    plan = decide(job, replace(GOING, pods=ALL.pods), NOW)
    assert state(plan) == ("Restarting", "jobRestarting")
    assert (plan.record.wave, plan.record.floor, plan.record.charged) == (1, 1, 1)
    assert len(dropped(plan)) == 3
    after = decide(job, replace(GOING, pods=(), record=plan.record, word=plan.word), NOW)
    assert [w.wave for w in after.writes if isinstance(w, MakePod)] == [1, 1, 1]
    assert after.record == plan.record, "what was counted is not counted again"


def test_pods_that_fail_within_one_second_are_one_wave_in_whatever_order_they_are_seen() -> None:
    """The first is counted; those that fail while they are told to end, or are gone by then, are not."""
    job = replace(JOB, retry_times=3)
    failed = [replace(p, phase="Failed", exit_code=1) for p in PODS]
    record, word = GOING.record, RUNNING
    for pods in ((failed[0], *PODS[1:]), (failed[1], replace(PODS[2], deleting=NOW)), (failed[2],)):
        plan = decide(job, replace(GOING, pods=pods, record=record, word=word), NOW)
        assert plan.word is not None
        record, word = plan.record, plan.word
        assert (record.wave, record.charged, record.failures) == (1, 1, 1)


def test_only_the_lost_pod_is_replaced_and_its_node_avoided() -> None:
    job = replace(GRACE, keeps_others=True, recovers=True)
    seen = replace(GOING, nodes=LOST.nodes, insight=Insight(recovers=True), previous={("Worker", 0): "node-1"})
    plan = decide(job, seen, NOW)
    assert dropped(plan) == ["job-worker-0"]
    assert (plan.record.wave, plan.record.floor, plan.record.charged) == (1, 0, 0)
    assert plan.record.avoid == (("node-1", NOW),)
    gone = replace(seen, pods=(PODS[0], PODS[2]), record=plan.record, word=plan.word)
    assert decide(job, gone, NOW).writes == (MakePod(("Worker", 0), 1, "", ("node-1",)),)


def test_what_happens_to_a_pod_that_stayed_when_another_was_replaced_is_judged_as_what_it_is() -> None:
    """Not as one that somebody deleted: it is counted, its node is avoided, and what is not known yet is waited for."""
    job = replace(GRACE, keeps_others=True, recovers=True)
    pods = (*PODS[:2], replace(PODS[2], wave=1))
    record = replace(GOING.record, wave=1, launched=1)
    lost = replace(GOING, pods=pods, nodes=LOST.nodes, record=record, insight=Insight(recovers=True))
    plan = decide(job, lost, NOW)
    assert dropped(plan) == ["job-worker-0"]
    assert (plan.record.wave, plan.record.avoid) == (2, (("node-1", NOW),))
    assert plan.word is not None
    assert "Worker 0 has lost its node" in plan.word.message

    crashed = replace(lost, nodes=NODES, pods=(PODS[0], replace(PODS[1], phase="Failed", exit_code=1), pods[2]))
    assert state(decide(JOB, replace(crashed, insight=None), NOW)) == ("Failed", "JobFailed")
    unsure = decide(job, replace(crashed, insight=None, insight_until=NOW + 5), NOW)
    assert (unsure.writes, unsure.record.wave, unsure.again_s) == ((), 1, 5)


def test_a_pod_that_was_left_for_a_process_is_replaced_and_its_node_taken_again_for_want_of_another() -> None:
    job = replace(GRACE, keeps_others=True, recovers=True)
    left = Insight(recovers=True, left={PODS[1].uid: "rank 1 killed (SIGKILL)"})
    seen = replace(GOING, insight=left, previous={("Worker", 0): "node-1"})
    plan = decide(job, seen, NOW)
    assert dropped(plan) == ["job-worker-0"]
    assert (plan.record.wave, plan.record.floor, plan.record.charged) == (1, 0, 0)
    assert (plan.record.avoid, plan.record.shun) == ((), (("node-1", NOW),))
    gone = replace(seen, pods=(PODS[0], PODS[2]), record=plan.record, word=plan.word, insight=Insight(recovers=True))
    assert decide(job, gone, NOW).writes == (MakePod(("Worker", 0), 1, "", shun=("node-1",)),)


def test_a_pod_that_only_crashed_prefers_its_node() -> None:
    job = replace(JOB, retry_times=3, keeps_others=True)
    seen = replace(GOING, pods=CRASHED.pods, previous={("Worker", 0): "node-1"})
    plan = decide(job, seen, NOW)
    gone = replace(seen, pods=(PODS[0], PODS[2]), record=plan.record, word=plan.word)
    assert decide(job, gone, NOW).writes == (MakePod(("Worker", 0), 1, "node-1", ()),)


def _stuck(deleting: float, node: NodeSeen | None, how: str) -> list[int | None]:
    nodes = {name: n for name, n in NODES.items() if name != "node-1"} | ({"node-1": node} if node else {})
    pods = (PODS[0], replace(PODS[1], deleting=deleting), PODS[2])
    record = replace(GOING.record, wave=1)
    word = Word("Restarting", "jobRestarting", "")
    seen = replace(GOING, pods=pods, nodes=nodes, record=record, word=word)
    plan = decide(replace(JOB, fault_scheduling=how, keeps_others=True), seen, NOW)
    assert plan.writes or plan.again_s is not None, "somebody looks again"
    return [w.grace_s for w in plan.writes if isinstance(w, DropPod)]


def test_a_pod_that_hangs_on_a_lost_node_is_taken_away() -> None:
    silent = NodeSeen(ready=False)
    assert _stuck(NOW - 1, silent, "grace") == [], "not yet"
    assert _stuck(NOW - FENCE_S - 1, silent, "grace") == [0]
    assert _stuck(NOW + 20, silent, "force") == [0], "at once"
    assert _stuck(NOW + 20, None, "grace") == [0], "the node is no more"
    assert _stuck(NOW + 20, NodeSeen(fenced=True), "grace") == [0], "somebody says that it is off"
    assert _stuck(NOW - 60, NodeSeen(), "grace") == [], "its node is well: it may take its time"
    assert _stuck(NOW - 1000, NodeSeen(), "grace") == [0]


def test_success_needs_all_and_remembers_each() -> None:
    first = replace(GOING, pods=(replace(PODS[0], phase="Succeeded"), *PODS[1:]))
    plan = decide(JOB, first, NOW)
    assert state(plan)[0] == "Running"
    assert plan.record.done == (("Master", (0,)),)
    later = replace(first, pods=PODS[1:], record=plan.record)
    assert decide(JOB, later, NOW).writes == (), "a pod that had succeeded may go"
    rest = tuple(replace(p, phase="Succeeded") for p in PODS[1:])
    end = decide(JOB, replace(later, pods=rest), NOW)
    assert state(end) == ("Succeeded", "JobSucceeded")
    assert end.record.ended_at == NOW


def test_a_program_that_ends_well_because_its_pod_was_deleted_has_not_done_its_work() -> None:
    """`trap 'exit 0' TERM`. `onward run` says 0 only when the work is done, so that is believed."""
    told = replace(PODS[2], phase="Succeeded", exit_code=0, deleting=NOW + 30, dismissed=True)
    seen = replace(GOING, pods=(*PODS[:2], told))
    plan = decide(JOB, seen, NOW)
    assert (state(plan)[0], plan.record.done, plan.record.charged) == ("Restarting", (), 1)
    assert plan.word is not None
    assert "Worker 1 is gone (its pod was deleted)" in plan.word.message
    manned = decide(JOB, replace(seen, record=replace(GOING.record, begun=0)), NOW)
    assert (state(manned)[0], manned.record.done, manned.record.charged) == ("Running", (("Worker", (1,)),), 0)


class Index(int):
    """Counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Index.compared += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_places_that_are_done_are_not_gone_through_for_each_place() -> None:
    """Thousands of pods that have succeeded, and are deleted by now."""
    many = 500
    job = replace(JOB, roles=(JOB.roles[0], replace(JOB.roles[1], count=many)))
    record = replace(GOING.record, shape=job.shape, done=(("Worker", tuple(map(Index, range(many)))),))
    plan = decide(job, replace(GOING, pods=PODS[:1], record=record), NOW)
    assert (plan.writes, state(plan)[0]) == ((), "Running")
    assert Index.compared < 20 * many


def test_an_elastic_job_may_end_without_those_that_found_no_place() -> None:
    waiting = replace(PODS[2], phase="Pending", node="", wave=1)
    pods = (*(replace(p, phase="Succeeded") for p in PODS[:2]), waiting)
    seen = replace(GOING, pods=pods, record=replace(GOING.record, wave=1, launched=1))
    assert state(decide(JOB, seen, NOW))[0] == "Running"
    plan = decide(replace(JOB, elastic=True), seen, NOW)
    assert state(plan)[0] == "Succeeded"
    after = decide(replace(JOB, elastic=True), replace(seen, word=plan.word, record=plan.record), NOW)
    assert dropped(after) == ["job-worker-1"]


def _after_end(word: str, clean: str, ttl_s: int | None = None, ended: float = NOW) -> Plan:
    pods = (replace(PODS[0], phase="Failed"), PODS[1], replace(PODS[2], phase="Pending"))
    record = replace(GOING.record, ended_at=ended)
    seen = replace(GOING, pods=pods, word=Word(word, "x", "x"), record=record)
    return decide(replace(JOB, clean_pods=clean, ttl_s=ttl_s), seen, NOW)


def test_what_is_left_after_the_end() -> None:
    assert dropped(_after_end("Failed", "None")) == ["job-worker-0", "job-worker-1"], "a failed job holds nothing"
    assert dropped(_after_end("Failed", "All")) == ["job-master-0", "job-worker-0", "job-worker-1"]
    assert dropped(_after_end("Succeeded", "None")) == ["job-worker-1"]
    assert dropped(_after_end("Succeeded", "Running")) == ["job-worker-0", "job-worker-1"]
    assert DropGang() in _after_end("Failed", "None").writes


def test_what_others_do_in_a_pod_that_has_ended_ends_with_the_job() -> None:
    """What trained has ended; a sidecar runs on, and holds what its pod asked for."""
    pods = tuple(replace(p, phase="Succeeded", lingers=True) for p in PODS)
    end = decide(JOB, replace(GOING, pods=pods), NOW)
    assert state(end) == ("Succeeded", "JobSucceeded")
    after = replace(GOING, pods=pods, word=end.word, record=end.record)
    assert len(dropped(decide(JOB, after, NOW))) == 3
    assert dropped(decide(replace(JOB, clean_pods="None"), after, NOW)) == []
    failed = (PODS[0], replace(PODS[1], phase="Failed", exit_code=3, lingers=True), replace(PODS[2], phase="Failed"))
    over = decide(JOB, replace(GOING, pods=failed), NOW)
    assert state(over) == ("Failed", "JobFailed")
    after = replace(GOING, pods=failed, word=over.word, record=over.record)
    for clean in ("None", "Running"):
        assert dropped(decide(replace(JOB, clean_pods=clean), after, NOW)) == ["job-master-0", "job-worker-0"]


def test_which_pod_it_was_is_said_where_the_words_of_the_state_do_not() -> None:
    plan = decide(JOB, replace(GOING, pods=(PODS[0], replace(PODS[1], phase="Failed", exit_code=3), PODS[2])), NOW)
    assert [(e.reason, e.message) for e in plan.events] == [
        ("JobFailed", "Job ns/job has failed because has pod failed."),
        ("PodLost", "Job ns/job: Worker 0 failed (exit code 3); no retry is allowed."),
    ]
    spent = replace(GOING, pods=CRASHED.pods, record=replace(GOING.record, failures=3, charged=3))
    lost = next(e for e in decide(replace(JOB, keeps_others=True), spent, NOW).events if e.reason == "PodLost")
    assert lost.message.endswith("3 waves are forgiven where neither fault-retry-times nor backoffLimit is set.")
    again = decide(replace(JOB, retry_times=1), replace(GOING, pods=ALL.pods), NOW)
    assert [e.reason for e in again.events] == ["jobRestarting", "PodLost"]
    assert [e.reason for e in decide(JOB, replace(GOING, pods=PODS[:2]), NOW).events] == ["jobRestarting"]


def test_the_time_after_the_end() -> None:
    assert DropJob() not in _after_end("Failed", "None", None, NOW - 1e6).writes
    waits = _after_end("Failed", "None", 10, NOW - 4)
    assert DropJob() not in waits.writes
    assert waits.again_s == 6
    assert DropJob() in _after_end("Failed", "None", 10, NOW - 10).writes


def test_a_job_that_is_wrong_fails_with_all_its_problems_and_its_time_runs() -> None:
    job = replace(JOB, roles=(), problems=(("InvalidA", "a is wrong"), ("InvalidB", "b too")), ttl_s=5)
    plan = decide(job, NEW, NOW)
    assert state(plan) == ("Failed", "JobValidFailed")
    assert plan.word is not None
    assert plan.word.message == "InvalidA: a is wrong; InvalidB: b too"
    assert [(e.reason, e.warning) for e in plan.events] == [
        ("JobValidFailed", True),  # first: of very many events the last are dropped
        ("InvalidA", True),
        ("InvalidB", True),
    ]
    assert plan.writes == ()
    seen = replace(NEW, word=plan.word, record=plan.record)
    assert DropJob() in decide(job, seen, NOW + 6).writes


def test_the_deadline_counts_from_the_start() -> None:
    job = replace(JOB, deadline_s=150)
    assert decide(job, GOING, NOW).again_s == 50
    plan = decide(job, GOING, NOW + 51)
    assert state(plan) == ("Failed", "JobFailed")
    assert [(e.type, e.holds) for e in plan.extras] == [("Recovering", False)], "what was under way is not any more"
    assert len(dropped(decide(job, replace(GOING, word=plan.word, record=plan.record), NOW))) == 3


def test_suspended_pods_go_and_are_not_lost() -> None:
    job = replace(JOB, suspend=True)
    plan = decide(job, GOING, NOW)
    assert state(plan) == ("Created", "JobSuspended")
    assert len(dropped(plan)) == 3
    assert DropGang() in plan.writes
    assert plan.record.started_at is None
    said_no = {extra.type for extra in plan.extras if not extra.holds}
    assert said_no == {"GangScheduled", "Recovering", "Degraded"}, "nothing is left of what was said of its pods"
    going = tuple(replace(p, deleting=NOW + 30) for p in PODS)
    again = decide(job, replace(GOING, pods=going, word=plan.word, record=plan.record, gang=None), NOW)
    assert (dropped(again), again.record) == ([], plan.record)
    seen = replace(GOING, pods=going, word=plan.word, record=plan.record, gang=None)
    resumed = decide(JOB, seen, NOW)  # while they are still ending
    assert resumed.record.charged == 0
    assert state(resumed) == ("Created", "JobCreated")
    ready = replace(seen, pods=(), word=resumed.word, record=resumed.record, gang=Gang("Inqueue"))
    assert len(made(decide(JOB, ready, NOW))) == 3


def test_other_replicas_are_another_set_of_pods() -> None:
    fewer = replace(JOB, roles=(JOB.roles[0], replace(JOB.roles[1], count=1)))
    pods = (*PODS[:2], replace(PODS[2], place=None))
    plan = decide(fewer, replace(GOING, pods=pods, gang=Gang("Running", current=False)), NOW)
    assert state(plan)[0] == "Restarting"
    assert len(dropped(plan)) == 3
    assert MakeGang(change=True) in plan.writes
    assert (plan.record.charged, plan.record.shape) == (0, "Master=1,Worker=1")


def test_a_new_template_is_also_for_pods_that_have_no_node_yet() -> None:
    waiting = tuple(replace(p, phase="Pending", node="", outdated=True) for p in PODS)
    seen = replace(GOING, word=CREATED, pods=waiting, gang=Gang("Inqueue"))
    plan = decide(JOB, seen, NOW)
    assert dropped(plan) == [p.name for p in PODS]
    assert state(plan)[0] == "Created"
    assert plan.record.floor == plan.record.wave > seen.record.wave
    gone = decide(JOB, replace(seen, pods=(), word=plan.word, record=plan.record), NOW)
    assert len(made(gone)) == 3
    assert (gone.record.charged, gone.record.wave) == (0, plan.record.wave), "nothing was lost"


def test_a_new_template_leaves_pods_alone_that_have_a_node() -> None:
    pods = (*PODS[:2], replace(PODS[2], phase="Pending", node="", outdated=True))
    plan = decide(JOB, replace(GOING, pods=pods), NOW)
    assert dropped(plan) == [PODS[2].name]
    assert (plan.record.charged, plan.record.floor) == (0, GOING.record.floor)
    assert state(plan)[0] == "Running", "the state says what is lost, and nothing is"


def test_that_a_new_template_waits_for_new_pods_is_said_once() -> None:
    seen = replace(GOING, generation=2, pods=tuple(replace(p, outdated=True) for p in PODS))
    plan = decide(JOB, seen, NOW)
    assert (plan.writes, state(plan)[0]) == ((), "Running")
    assert [e.message for e in plan.events] == [
        "Job ns/job: the template was changed: 3 pods that have a node run on; it is for those made from now on."
    ]
    assert decide(JOB, replace(seen, record=plan.record), NOW).events == ()
    other = replace(seen, record=replace(seen.record, shape="Master=1,Worker=1"))
    assert [e.reason for e in decide(JOB, other, NOW).events] == ["jobRestarting"], "all are made anew at once"


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    plan = decide(JOB, replace(GOING, pods=ALL.pods, ends="it is being deleted"), NOW)
    assert plan.hands_off
    assert plan.writes == ()


def test_pods_that_a_job_has_no_place_for_go() -> None:
    extra = PodSeen(None, "job-worker-9", "uid-9", 0, "Running", "node-0")
    assert dropped(decide(JOB, replace(GOING, pods=(*PODS, extra)), NOW)) == ["job-worker-9"]


def test_when_nobody_is_left_who_could_go_on_all_begin_anew() -> None:
    """The pods that replace others were told where those are; these are lost as well before they have met."""
    job = replace(JOB, keeps_others=True, recovers=True, retry_times=5)
    fresh = replace(PODS[0], wave=1, uid="new")
    record = replace(GOING.record, wave=1, launched=0)
    seen = replace(GOING, pods=(fresh, *PODS[1:]), record=record, word=Word("Restarting", "jobRestarting", "x"))
    assert decide(job, seen, NOW).record.floor == 0
    failed = tuple(replace(p, phase="Failed", exit_code=1) for p in PODS[1:])
    plan = decide(job, replace(seen, pods=(fresh, *failed)), NOW)
    assert (plan.record.wave, plan.record.floor) == (2, 2)
    assert len(dropped(plan)) == 3
    gone = decide(job, replace(seen, pods=failed), NOW)
    assert gone.record.floor == gone.record.wave == 1
    assert (plan.record.charged, gone.record.charged) == (0, 0), "the wave was counted when it began"
    free = replace(record, free=1)
    for pods in ((fresh, *failed), failed):
        assert decide(job, replace(seen, pods=pods, record=free), NOW).record.charged == 1, "nobody went on after all"


def test_a_pod_that_came_too_late_to_hear_of_the_job_is_nobody_who_could_go_on() -> None:
    """The first lost pod is replaced already, and the other is gone before the new one is known to have met it."""
    job = replace(JOB, keeps_others=True, recovers=True, retry_times=5)
    fresh = [replace(p, wave=1, uid=f"new-{p.uid}") for p in PODS[1:]]
    record = replace(GOING.record, wave=2, launched=1, free=2, begun=0)
    knew = Insight(recovers=True, pods=frozenset(p.uid for p in PODS))
    again = Word("Restarting", "jobRestarting", "x")
    seen = replace(GOING, pods=tuple(fresh), record=record, word=again, lately=knew, insight_until=NOW + 20)
    early = decide(job, seen, NOW)
    assert (early.record.floor, made(early)) == (0, []), "it may have been let in since: a new manager will say"
    assert early.again_s == 20
    late = decide(job, seen, NOW + 20)
    assert late.record.floor == late.record.wave, late.why
    for told in (replace(knew, pods=knew.pods | {fresh[0].uid}), None):
        plan = decide(job, replace(seen, lately=told), NOW)
        assert (plan.record.floor, made(plan)) == (0, [PODS[0].place]), "it can tell the others"


def test_a_loss_that_cannot_be_judged_yet_is_not_hidden_by_a_new_pod() -> None:
    job = replace(JOB, keeps_others=True, recovers=True)
    seen = replace(GOING, pods=PODS[:2], insight_until=NOW + 5)
    waits = decide(job, seen, NOW)
    assert (waits.writes, waits.again_s) == ((), 5)
    late = decide(job, seen, NOW + 6)
    assert made(late) == [("Worker", 1)]
    assert late.record.charged == 1


def test_a_program_that_fails_as_soon_as_it_starts_is_started_again_more_and_more_slowly() -> None:
    job = replace(JOB, retry_times=5000)
    crashed = tuple(replace(p, phase="Failed", exit_code=1, made_at=NOW - 5) for p in PODS)
    for waves, waits_s in ((0, 0.0), (2, 0.0), (3, 5.0), (4, 15.0), (5, 35.0), (6, 55.0), (1000, 55.0)):
        record = replace(GOING.record, charged=waves, failures=waves)
        plan = decide(job, replace(GOING, pods=crashed, record=record), NOW)
        assert state(plan) == ("Restarting", "jobRestarting"), "that is what it does, also while it waits"
        assert plan.record.charged == waves + (not waits_s), "what waits is counted when its time has come"
        if waits_s:
            assert (plan.again_s, made(plan), dropped(plan)) == (waits_s, [], [])
            after = decide(job, replace(GOING, pods=crashed, record=plan.record, word=plan.word), NOW + waits_s)
            assert after.record.charged == waves + 1
            assert [e.reason for e in after.events if e.reason == "jobRestarting"] == [], "it was said"
    old = tuple(replace(p, made_at=NOW - 61) for p in crashed)
    assert decide(job, replace(GOING, pods=old, record=record), NOW).record.charged == 1001, "it had worked for a while"


def test_a_pod_that_comes_later_joins_where_somebody_is_in_charge_and_begins_where_nobody_was() -> None:
    job = replace(JOB, keeps_others=True, recovers=True)
    known = Insight(recovers=True, pods=frozenset({"uid-0", "uid-1"}))
    lost = replace(GOING, pods=PODS[:2])
    early = [w for w in decide(job, lost, NOW).writes if isinstance(w, MakePod)]
    later = [w for w in decide(job, replace(lost, insight=known), NOW).writes if isinstance(w, MakePod)]
    assert [(w.floor, w.joins) for w in early + later] == [(0, False), (0, True)]
    assert decide(job, replace(GOING, insight=known), NOW).record.begun == 0, "that outlives the operator"
    anew = replace(GOING.record, wave=1, floor=1, begun=0)
    old = replace(lost, record=anew, insight=known)
    assert decide(job, old, NOW).record.begun == 0, "the manager of pods that are to go is nobody to join"


def test_what_the_manager_of_earlier_pods_said_last_does_not_count_for_those_that_began_anew() -> None:
    job = replace(JOB, keeps_others=True, recovers=True)
    ended = Insight(over=True, recovers=True, pods=frozenset({"earlier-0", "earlier-1"}))
    anew = replace(GOING.record, wave=2, floor=2, launched=2, begun=0)
    pods = tuple(replace(p, wave=2) for p in PODS)
    seen = replace(GOING, pods=pods[:2], record=anew, lately=ended, insight_until=NOW + 5)
    for earlier in (seen, replace(seen, insight=ended, lately=None), replace(seen, insight=replace(ended, over=False))):
        waits = decide(job, earlier, NOW)
        assert (waits.writes, waits.again_s, waits.record.charged) == ((), 5, 0), "who is in these pods is waited for"
    now_known = replace(seen, insight=Insight(recovers=True, pods=frozenset(p.uid for p in pods)))
    plan = decide(job, now_known, NOW)
    assert (made(plan), plan.record.charged, plan.record.floor) == ([("Worker", 1)], 0, 2)


def test_when_those_inside_cannot_go_on_all_begin_anew_and_that_is_counted_once() -> None:
    job = replace(JOB, keeps_others=True, recovers=True, backoff_limit=1)
    seen = replace(GOING, hopeless="all are gone")
    plan = decide(job, seen, NOW)
    assert (plan.record.wave, plan.record.floor, plan.record.charged) == (1, 1, 1)
    assert len(dropped(plan)) == 3
    assert plan.word is not None
    assert plan.word.message == "Job ns/job is restarting because all are gone."
    again = decide(job, replace(seen, record=plan.record, word=plan.word), NOW)
    assert again.record == plan.record
    over = decide(job, replace(seen, record=replace(GOING.record, charged=1)), NOW)
    assert state(over) == ("Failed", "JobFailed")


def test_a_pod_of_a_new_beginning_does_not_look_for_those_who_are_to_go() -> None:
    plan = decide(JOB, replace(GOING, pods=PODS[:2]), NOW)
    assert [(w.wave, w.floor) for w in plan.writes if isinstance(w, MakePod)] == [(1, 1)]
