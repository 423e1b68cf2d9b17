"""Every kind of fault: the others keep their PIDs, no step is lost, and the result is bit for bit that without it."""

from __future__ import annotations

import pytest
from again import nightly

pytestmark = pytest.mark.torch
SCRIPT, STEPS = "examples/ddp_min.py", ("--steps", "40")

DEADLY = {
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "abort": "SIGABRT",
    "exit-code,code=7": "exit code 7",
    "bug": "ValueError",
    "oom": "MemoryError",
}
HANGS = ("stop", "sleep-hang", "gil-hang", "endless-loop", "skip-collective,at=collective")


def check(jobs, result, survivors, policy):
    assert result.code == 0, result.err[-3000:]
    assert result.outcome["outcome"] == "Succeeded"
    assert result.outcome["steps"] == 40
    assert result.outcome["steps_lost"] == 0
    assert policy in result.policies()
    for rank in survivors:
        assert len(result.pids(rank)) == 1, f"rank {rank} was restarted: {result.pids(rank)}"
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


@pytest.mark.parametrize("kind", DEADLY)
def test_a_dead_process_is_replaced(jobs, kind):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind={kind},rank=2,step=20"])
    check(jobs, result, (0, 1, 3), "recover-in-place")
    assert len(result.pids(2)) == 2
    texts = " ".join(f["text"] for i in result.incidents for f in i["faults"] if f["rank"] == 2)
    assert DEADLY[kind] in texts
    assert result.outcome["chaos"], "the injected fault must be proved to have happened"


@pytest.mark.parametrize("kind", HANGS)
def test_a_hung_rank_is_found_and_named(jobs, kind):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind={kind},rank=1,step=20"])
    check(jobs, result, (0, 2, 3), "recover-in-place")
    hang = [f for i in result.incidents for f in i["faults"] if f["kind"] == "hang"]
    assert [f["rank"] for f in hang] == [1], hang
    assert "rank 1" in hang[0]["text"]
    evidence = result.incidents[0]["evidence"]
    assert "by py-spy" in evidence or "by /proc" in evidence, "the guilty rank's stacks belong to the incident"


@pytest.mark.parametrize("kind", ["exception", "exception,at=optimizer", "drop-connections,at=collective"])
def test_a_retryable_error_ends_no_process(jobs, kind):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind={kind},rank=3,step=20"])
    check(jobs, result, (0, 1, 2, 3), "retry")


def test_damaged_memory_is_repaired_from_a_replica(jobs):
    fault = "kind=exception,rank=1,step=20,text=CUDA error: uncorrectable ECC error encountered"
    result = jobs.run(SCRIPT, *STEPS, chaos=[fault])
    check(jobs, result, (0, 1, 2, 3), "retry")
    assert any("state for rank 1" in why for i in result.incidents for why in i["why"])


def test_a_pattern_of_the_users_own_is_retryable(jobs):
    fault = "kind=bug,rank=1,step=20,text=the frobnicator is warm"
    result = jobs.run(SCRIPT, *STEPS, chaos=[fault], flags=["--retry-on", "frobnicator is \\w+"])
    check(jobs, result, (0, 1, 2, 3), "retry")


@pytest.mark.parametrize("moment", ["begin", "forward", "collective", "optimizer", "end"])
@pytest.mark.parametrize("rank", [0, *nightly(3)])
def test_at_every_moment_of_a_step(jobs, moment, rank):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind=kill,rank={rank},step=20,at={moment}"])
    check(jobs, result, {0, 1, 2, 3} - {rank}, "recover-in-place")


@pytest.mark.parametrize("step", [0, 1, 39, *nightly(2)])
def test_in_the_first_steps_and_in_the_last(jobs, step):
    result = jobs.run(SCRIPT, *STEPS, chaos=[f"kind=kill,rank=0,step={step},at=optimizer"])
    check(jobs, result, (1, 2, 3), "recover-in-place")


def test_two_ranks_at_once(jobs):
    result = jobs.run(SCRIPT, *STEPS, chaos=["kind=double,rank=1+2,step=20"])
    check(jobs, result, (0, 3), "recover-in-place")


def test_a_second_rank_while_the_first_is_being_replaced(jobs):
    result = jobs.run(
        SCRIPT, *STEPS, chaos=["kind=kill,rank=1,step=20", "kind=during-recovery,rank=3"], flags=["--spares", "none"]
    )
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in (0, 2)] == [1, 1]
    assert [len(result.pids(r)) for r in (1, 3)] == [2, 2]
    jobs.same_state(jobs.reference(SCRIPT, *STEPS), result)


@pytest.mark.parametrize("moment", ["collective", "optimizer", *nightly("forward", "end")])
def test_again_in_the_very_next_step(jobs, moment):
    """Steps are light right after a recovery: nothing is copied aside that the second fault could go back to."""
    faults = [f"kind=kill,rank=2,step=20,at={moment}", f"kind=kill,rank=0,step=21,at={moment}"]
    result = jobs.run(SCRIPT, *STEPS, chaos=faults)
    check(jobs, result, (1, 3), "recover-in-place")
    assert len(result.outcome["chaos"]) == 2


@pytest.mark.parametrize("moment", ["collective", "optimizer", "end"])
def test_again_when_the_step_is_redone(jobs, moment):
    faults = [f"kind=exception,rank=1,step=20,at={moment}"] * 2 + [f"kind=kill,rank=1,step=20,at={moment}"]
    result = jobs.run(SCRIPT, *STEPS, chaos=faults)
    check(jobs, result, (0, 2, 3), "recover-in-place")
    assert len(result.outcome["chaos"]) == 3


def test_the_manager_dies_before_and_after_a_fault(jobs):
    faults = ["kind=kill-manager,step=8", "kind=kill,rank=2,step=20", "kind=kill-manager,step=30"]
    result = jobs.run(SCRIPT, *STEPS, chaos=faults)
    check(jobs, result, (0, 1, 3), "recover-in-place")


@pytest.mark.parametrize("spares", ["none", "one", *nightly("each")])
def test_with_and_without_spares(jobs, spares):
    result = jobs.run(SCRIPT, *STEPS, chaos=["kind=kill,rank=2,step=25"], flags=["--spares", spares])
    check(jobs, result, (0, 1, 3), "recover-in-place")


def test_a_cold_start_is_enough(jobs):
    result = jobs.run(SCRIPT, *STEPS, nproc=2, chaos=["kind=kill,rank=1,step=20"], flags=["--no-warm"])
    assert result.code == 0, result.err[-3000:]
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


def test_the_users_own_bug_surfaces_with_its_traceback(jobs):
    bug = "kind=bug,rank=1,step=20,text=shapes do not match"
    result = jobs.run(SCRIPT, *STEPS, nproc=2, chaos=[bug, bug])
    assert result.code == 1
    assert result.outcome["outcome"] == "Failed"
    assert "shapes do not match" in result.outcome["root_cause"]["error"]
    assert "Traceback" in result.outcome["root_cause"]["traceback"]
    assert len(result.incidents) <= 2


def test_the_digest_sees_a_single_changed_value(jobs, tmp_path):
    import shutil
    from pathlib import Path

    import torch

    reference = jobs.reference(SCRIPT, *STEPS)
    for rank in range(4):
        shutil.copy(f"{reference.digest}.{rank}.pt", tmp_path / f"changed.{rank}.pt")
    path = tmp_path / "changed.2.pt"
    state = torch.load(path, weights_only=False)
    first = next(iter(state["model"].values())).view(-1)
    first[0] = torch.nextafter(first[0], torch.tensor(10.0))
    torch.save(state, path)
    changed = type(reference)(0, "", "", {}, str(Path(tmp_path) / "changed"))
    with pytest.raises(AssertionError, match="DIFFERENT: rank 2"):
        jobs.same_state(reference, changed)
