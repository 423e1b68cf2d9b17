"""Hot switch, as far as pods go: who is relieved, by whom, and until when both stay."""

from __future__ import annotations

from dataclasses import replace

from cluster import GOING, NOW, dropped, state
from test_losses import JOB, PODS

from onward.core.jobs import Insight, MakePod, MakeService, PodSeen
from onward.core.reconcile import decide


def test_the_service_leads_to_the_stand_in_of_the_leader_when_the_old_pod_is_gone() -> None:
    job = replace(JOB, hot_switch=True, leader=("Master", 0))
    old = replace(PODS[0], place=None, index="0")
    new = replace(PODS[0], name=f"{old.name}-hot", uid="hot", index="0-hot")
    rest = tuple(replace(p, index=str(i)) for i, p in enumerate(PODS[1:]))
    insight = Insight(placed=frozenset(p.uid for p in (new, *rest)))
    both = replace(GOING, pods=(old, new, *rest), insight=insight, leads_to="0")
    assert not any(isinstance(w, MakeService) for w in decide(job, both, NOW).writes)
    alone = replace(both, pods=(new, *rest))
    assert MakeService("0-hot") in decide(job, alone, NOW).writes
    assert decide(job, replace(alone, leads_to="0-hot"), NOW).writes == ()
    bare = replace(alone, pods=(replace(new, index=""), *rest))
    assert decide(job, bare, NOW).writes == (), "somebody has taken its label: that is put back first"
    anew = replace(alone, pods=(replace(PODS[0], index="0"), *rest), leads_to="0-hot")
    assert MakeService("0") in decide(job, anew, NOW).writes, "and to whom takes its place in turn"


def test_beside_a_pod_that_ails_another_gets_ready() -> None:
    job, ails = replace(JOB, hot_switch=True), PODS[1]
    insight = Insight(placed=frozenset(p.uid for p in PODS), ailing={ails.uid: "its fan"})
    seen = replace(GOING, insight=insight)
    plan = decide(job, seen, NOW)
    stand_in = MakePod(("Worker", 0), seen.record.wave, "", (ails.node,), seen.record.floor, True, ails.name)
    assert plan.writes == (stand_in,)
    assert state(plan)[0] == "Running"
    assert decide(JOB, seen, NOW).writes == (), "only where it was asked for"
    assert decide(replace(job, fault_scheduling="off"), seen, NOW).writes == ()
    ready = PodSeen(None, f"{ails.name}-hot", "hot", seen.record.wave, "Running", "n9", stands_in=("Worker", 0))
    beside = replace(seen, pods=(*PODS, ready))
    assert decide(job, beside, NOW).writes == (), "one is enough, and it may stay"
    assert decide(job, replace(beside, insight=None), NOW).writes == (), "nobody can tell"
    well = replace(beside, insight=replace(insight, ailing={}))
    assert dropped(decide(job, well, NOW)) == [ready.name], "it is not wanted any more"


def test_a_pod_that_was_relieved_goes_when_all_train_again() -> None:
    job = replace(JOB, hot_switch=True)
    old = replace(PODS[1], place=None)
    new = replace(PODS[1], name="new", uid="new")
    seen = replace(GOING, pods=(PODS[0], old, new, PODS[2]), insight=Insight(incident=1))
    assert decide(job, seen, NOW).writes == (), "the manager may be in it"
    plan = decide(job, replace(seen, insight=Insight()), NOW)
    assert dropped(plan) == [old.name]
    assert (plan.record.wave, plan.record.charged) == (seen.record.wave, 0), "nothing was lost"
