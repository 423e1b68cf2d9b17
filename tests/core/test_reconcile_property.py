"""`decide` under everything: any observed state is answered, and a cluster that is left alone comes to rest.

The cluster here is a dictionary. Between passes anything may happen to it; a pass may see it as it was before, and may
be cut off after any of its writes. The rules of the API server hold: a name is taken once, a deletion means a uid, and
a status is written only on top of the one that was read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from onward.core.jobs import (
    FAILED,
    OVER,
    RUNNING,
    SUCCEEDED,
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
    Record,
    Role,
    Seen,
    Wanted,
    Word,
)
from onward.core.reconcile import decide

NODES = [f"node-{i}" for i in range(4)]
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"])
waves = st.integers(0, 4)
places = st.sampled_from([("Master", 0), ("Worker", 0), ("Worker", 1), None])
times = st.floats(0, 3000)

jobs = st.builds(
    Wanted,
    namespace=st.just("ns"),
    name=st.just("job"),
    uid=st.just("u"),
    roles=st.tuples(
        st.builds(Role, st.just("Master"), st.just(1), st.sampled_from(["Never", "ExitCode"])),
        st.builds(Role, st.just("Worker"), st.integers(0, 2), st.sampled_from(["Never", "ExitCode", "OnFailure"])),
    ),
    gang=st.booleans(),
    suspend=st.booleans(),
    backoff_limit=st.integers(0, 2),
    retry_times=st.integers(0, 2),
    deadline_s=st.one_of(st.none(), st.integers(1, 2000)),
    ttl_s=st.one_of(st.none(), st.integers(0, 100)),
    clean_pods=st.sampled_from(["None", "Running", "All"]),
    fault_scheduling=st.sampled_from(["", "grace", "force", "off"]),
    keeps_others=st.booleans(),
    recovers=st.booleans(),
    elastic=st.booleans(),
    hot_switch=st.booleans(),
    problems=st.sampled_from([(), (("InvalidX", "x"),)]),
)
pods = st.builds(
    PodSeen,
    place=places,
    name=st.sampled_from(["a", "b", "c", "d"]),
    uid=st.text("0123456789", min_size=1, max_size=3),
    wave=waves,
    phase=phases,
    node=st.sampled_from(["", *NODES, "unknown"]),
    deleting=st.one_of(st.none(), times),
    exit_code=st.one_of(st.none(), st.sampled_from([0, 1, 137])),
    evicted=st.booleans(),
    outdated=st.booleans(),
    stands_in=st.one_of(st.none(), st.sampled_from([("Master", 0), ("Worker", 1)])),
)
records = st.builds(
    Record,
    wave=waves,
    floor=waves,
    launched=st.integers(-1, 4),
    shape=st.sampled_from(["", "Master=1,Worker=2", "Master=1,Worker=1"]),
    charged=waves,
    failures=waves,
    done=st.sampled_from([(), (("Worker", (0,)),), (("Master", (0,)), ("Worker", (0, 1)))]),
    avoid=st.sampled_from([(), (("node-1", 10.0),)]),
    shun=st.sampled_from([(), (("node-1", 10.0),)]),
    started_at=st.one_of(st.none(), times),
    ended_at=st.one_of(st.none(), times),
)
words = st.one_of(
    st.none(),
    st.builds(Word, st.sampled_from(["Created", "Running", "Restarting", "Succeeded", "Failed"]), st.text(), st.text()),
)
seens = st.builds(
    Seen,
    pods=st.lists(pods, max_size=5).map(tuple),
    nodes=st.dictionaries(
        st.sampled_from(NODES),
        st.builds(NodeSeen, ready=st.booleans(), fenced=st.booleans(), trouble=st.sampled_from(["", "bad"])),
    ),
    service=st.booleans(),
    secret=st.booleans(),
    gang=st.one_of(st.none(), st.builds(Gang, st.sampled_from(["", "Pending", "Inqueue", "Running", "Unknown"]))),
    record=records,
    word=words,
    insight=st.one_of(st.none(), st.builds(Insight, over=st.booleans(), recovers=st.booleans())),
    insight_until=times,
    ends=st.sampled_from(["", "", "", "gone"]),
)


@settings(max_examples=150, deadline=None)
@given(jobs, seens, times)
def test_any_state_is_answered(job: Wanted, seen: Seen, now: float) -> None:
    plan = decide(job, seen, now)
    assert decide(job, seen, now) == plan, "the same answer to the same question"
    held = {p.place for p in seen.pods}
    made = [w.place for w in plan.writes if isinstance(w, MakePod)]
    assert len(made) == len(set(made))
    assert not held & set(made), "no place is given twice"
    assert set(made) <= set(job.places())
    known = {(p.name, p.uid) for p in seen.pods}
    assert {(w.name, w.uid) for w in plan.writes if isinstance(w, DropPod)} <= known, "nothing foreign is deleted"
    assert plan.record.charged >= seen.record.charged
    assert plan.record.wave >= seen.record.wave
    if seen.ends:
        assert plan.hands_off
        assert not plan.writes
    if seen.word is not None and seen.word.type in OVER:
        assert plan.word == seen.word, "an end is final"
        assert not made
    if plan.word is not None and plan.word.type == RUNNING and seen.word != plan.word:
        running = {p.place for p in seen.pods if p.phase in ("Running", "Succeeded")}
        done = {(role, i) for role, indices in plan.record.done for i in indices}
        assert set(job.places()) <= running | done
    if plan.word is not None and plan.word.type in OVER and (seen.word is None or seen.word.type not in OVER):
        assert not plan.writes, "the end is written down before anything follows"
        assert plan.again_s == 0


@dataclass
class Cluster:
    """The truth."""

    job: Wanted
    pods: dict[str, PodSeen] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    service: bool = False
    secret: bool = False
    gang: Gang | None = None
    record: Record = field(default_factory=Record)
    word: Word | None = None
    version: int = 0
    uids: int = 0
    deleted: bool = False
    now: float = 0.0
    made: list[tuple[str, int]] = field(default_factory=list)  # name, wave

    def see(self) -> tuple[Seen, int]:
        nodes = {name: NodeSeen(ready=name not in self.dead, since=self.now) for name in NODES}
        seen = Seen(
            pods=tuple(self.pods.values()),
            nodes=nodes,
            service=self.service,
            secret=self.secret,
            gang=self.gang,
            record=self.record,
            word=self.word,
        )
        return seen, self.version

    def carry_out(self, plan: Plan, version: int, stop_after: int) -> None:
        """As much of a plan as is done before its operator dies."""
        if plan.hands_off or stop_after == 0:
            return
        if (plan.record, plan.word) != (self.record, self.word):
            if version != self.version:
                return  # somebody else has written
            self.record, self.word, self.version = plan.record, plan.word, self.version + 1
        for write in plan.writes[: stop_after - 1]:
            self._write(write)

    def _write(self, write: object) -> None:
        match write:
            case MakeSecret():
                self.secret = True
            case MakeService():
                self.service = True
            case MakeGang():
                self.gang = Gang("Inqueue")
            case DropGang():
                self.gang = None
            case DropJob():
                self.deleted = True
            case MakePod():
                name = f"job-{write.place[0].lower()}-{write.place[1]}"
                if name not in self.pods:
                    self.uids += 1
                    self.pods[name] = PodSeen(write.place, name, f"uid-{self.uids}", write.wave)
                    self.made.append((name, write.wave))
            case DropPod():
                pod = self.pods.get(write.name)
                if pod is not None and pod.uid == write.uid:
                    if write.grace_s == 0 or not pod.node:
                        del self.pods[write.name]
                    else:
                        self.pods[write.name] = replace(pod, deleting=pod.deleting or self.now + 30)

    def kubelets(self, chance: random.Random) -> None:
        """Every pod goes one step further."""
        for name, pod in list(self.pods.items()):
            if pod.node in self.dead:
                continue
            if pod.deleting is not None:
                del self.pods[name]
            elif not pod.node:
                free = [n for n in NODES if n not in self.dead]
                if free:
                    self.pods[name] = replace(pod, node=chance.choice(free))
            elif pod.phase == "Pending":
                self.pods[name] = replace(pod, phase="Running")

    def trouble(self, chance: random.Random) -> None:
        name = chance.choice(list(self.pods)) if self.pods else ""
        match chance.randrange(6):
            case 0 if name:
                code = chance.choice([1, 137])
                self.pods[name] = replace(self.pods[name], phase="Failed", exit_code=code)
            case 1 if name:
                del self.pods[name]
            case 2 if name:
                self.pods[name] = replace(self.pods[name], deleting=self.now + 30)
            case 3:
                self.dead.add(chance.choice(NODES[:2]))
            case 4:
                self.dead.clear()
            case 5:
                self.job = replace(self.job, suspend=not self.job.suspend)


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(0, 2**32))
def test_a_cluster_that_is_left_alone_comes_to_rest(job: Wanted, seed: int) -> None:
    job = replace(job, deadline_s=None, ttl_s=None, problems=())
    chance = random.Random(seed)
    cluster = Cluster(job)
    old = cluster.see()
    for _ in range(60):
        now = cluster.see()
        stale = old if chance.random() < 0.2 and old[1] == now[1] else now
        # The pods may be older than the job: a cache that is behind. Its uids and names are then refused, not obeyed.
        seen = (replace(now[0], pods=stale[0].pods), now[1])
        if chance.random() < 0.8:
            cluster.carry_out(decide(cluster.job, seen[0], cluster.now), seen[1], chance.randrange(1, 9))
        old = now
        cluster.kubelets(chance)
        if chance.random() < 0.2:
            cluster.trouble(chance)
        cluster.now += chance.choice([0.1, 5.0])
    cluster.dead.clear()
    cluster.job = replace(cluster.job, suspend=False)
    for _ in range(60):
        seen_now, version = cluster.see()
        cluster.carry_out(decide(cluster.job, seen_now, cluster.now), version, 10_000)
        cluster.kubelets(chance)
        cluster.now += 40.0
    seen_now, _ = cluster.see()
    last = decide(cluster.job, seen_now, cluster.now)
    assert last.writes == ()
    assert (last.record, last.word) == (cluster.record, cluster.word), "at rest"
    assert cluster.word is not None
    assert cluster.word.type in (RUNNING, SUCCEEDED, FAILED)
    if cluster.word.type == RUNNING:
        assert {p.place for p in cluster.pods.values() if p.phase == "Running"} == set(job.places())
    for limit, used in ((job.backoff_limit or job.retry_times, cluster.record.charged),):
        assert not limit or used <= limit, "the budget is honest"
