"""What comes after the loop, and after the update of a step: it fails on one rank when the others are through."""

from __future__ import annotations

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from onward.train.loop import was_broken

pytestmark = pytest.mark.torch

SCRIPT = """
    import os, signal, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    import onward

    run = onward.init()
    torch.manual_seed(7)
    model = DDP(torch.nn.Linear(8, 8))
    opt = torch.optim.AdamW(model.parameters())
    run.protect(model=model, optimizer=opt)

    def once(name):
        try:
            os.close(os.open(os.path.join(os.path.dirname(__file__), name), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def all_inside():  # nobody goes on before all are in their block
        place = os.path.dirname(__file__)
        open(os.path.join(place, f"inside{run.rank}"), "w").close()
        until = time.monotonic() + 60
        while not all(os.path.exists(os.path.join(place, f"inside{rank}")) for rank in range(4)):
            assert time.monotonic() < until
            time.sleep(0.005)

    def exchange(step):  # of which each rank knows its own part only
        mine = torch.zeros(4)
        dist.all_to_all_single(mine, torch.arange(4.0) + 10 * run.rank)
        assert mine.tolist() == [run.rank + 10.0 * other for other in range(4)]
        if step.index == 5 and run.rank == 1 and once("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    class Bar:  # as those that draw a progress bar do it
        def __init__(self, steps):
            self.steps = steps

        def __iter__(self):
            try:
                for step in self.steps:
                    yield step
            finally:
                print("closed")

    loop = {loop}
    for step in loop:
        with step:
            {first}
            g = torch.Generator().manual_seed(100 * step.index + run.rank)
            model(torch.randn(4, 8, generator=g)).square().mean().backward()
            opt.step()
            opt.zero_grad()
            {in_block}
        {in_loop}
    {after}
    digest = sum(p.detach().double().sum() for p in model.parameters()).item()
    with open(f"{os.path.dirname(__file__)}/digest{run.rank}", "a") as f:
        print(digest, file=f)
"""


def script(tmp_path, in_block="pass", in_loop="pass", after="pass", loop="run.steps(12)", first="pass"):
    path = tmp_path / "job.py"
    body = textwrap.dedent(SCRIPT).replace("{in_block}", in_block).replace("{in_loop}", in_loop)
    body = body.replace("{loop}", loop).replace("{first}", first)
    path.write_text(body.replace("{after}", textwrap.dedent(after).strip()))
    return path


def same_digests(tmp_path):
    """Each rank has come to its end once, all with the same weights."""
    told = [(tmp_path / f"digest{rank}").read_text().splitlines() for rank in range(4)]
    assert [len(lines) for lines in told] == [1, 1, 1, 1]
    assert len({lines[0] for lines in told}) == 1


DIES_LAST = """
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 4
dist.destroy_process_group()
if run.rank == 1 and once("died"):
    until = time.monotonic() + 60
    while not all(os.path.exists(f"{os.path.dirname(__file__)}/digest{rank}") for rank in (0, 2, 3)):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_dies_when_the_others_have_ended(jobs, tmp_path):
    """They wait for it: nobody else holds the state, and the sum that it must have is told to its replacement."""
    result = jobs.run(script(tmp_path, after=DIES_LAST))
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"]
    assert [len(result.pids(r)) for r in range(4)] == [1, 2, 1, 1], result.incidents
    assert result.outcome["steps_lost"] == 0
    same_digests(tmp_path)


BUSY = """
if run.rank == 0:
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        time.sleep(0.01)
if run.rank == 1 and once("died"):
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


def test_who_is_busy_after_the_loop_is_not_hung(jobs, tmp_path):
    """Rank 0 saves for much longer than a step, first while all wait for it, then while one is replaced."""
    result = jobs.run(script(tmp_path, after=BUSY), flags=["--hang-floor", "0.7"])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"]
    assert [len(result.pids(r)) for r in range(4)] == [1, 2, 1, 1], result.incidents
    same_digests(tmp_path)


def test_one_that_stops_when_all_have_ended_undoes_nothing(jobs, tmp_path):
    """Python runs its exit handlers from the last to the first: this one when the library has let go."""
    job = script(tmp_path)
    stops = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)"
    handler = f"import atexit, os, signal\n@atexit.register\ndef stop():\n    {stops}\n"
    job.write_text(handler + job.read_text())
    result = jobs.run(job, flags=["--spares", "none"])
    assert result.code == 0, result.err[-3000:]
    assert result.incidents == []
    assert [len(result.pids(r)) for r in range(4)] == [1, 1, 1, 1], result.incidents
    same_digests(tmp_path)


def test_an_error_after_the_loop_is_the_jobs_error(jobs, tmp_path):
    result = jobs.run(script(tmp_path, after="if run.rank == 2: raise KeyError('export')"))
    assert result.code != 0
    assert "KeyError: 'export'" in result.err
    assert result.outcome["outcome"] == "Failed"


def test_a_bug_after_the_update_surfaces_too(jobs, tmp_path):
    """The others have made that step and go on; the script would fail there for ever."""
    bug = "if step.index == 5 and run.rank == 3: raise ValueError('bad label')"
    result = jobs.run(script(tmp_path, in_block=bug))
    assert result.code != 0
    assert "ValueError: bad label" in result.err
    assert "this is an error in the script" in result.outcome["reason"]
    assert "job.py" in result.err


def test_an_error_after_the_update_that_does_not_come_back_is_survived(jobs, tmp_path):
    bug = "if step.index == 5 and run.rank == 3 and once('bug'): raise ValueError('cosmic')"
    result = jobs.run(script(tmp_path, in_block=bug))
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in range(4)] == [1, 1, 1, 2], result.incidents
    same_digests(tmp_path)


def test_left_with_break_a_loop_has_a_safe_end_too(jobs, tmp_path):
    """The others have left it long ago when a rank dies in what comes after. The steps have a name and a wrapper."""
    leaves = "if step.index == 7: break"
    result = jobs.run(script(tmp_path, in_loop=leaves, after=DIES_LAST, loop="Bar(run.steps(12))"))
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"]
    assert [len(result.pids(r)) for r in range(4)] == [1, 2, 1, 1], result.incidents
    assert (result.outcome["steps"], result.outcome["steps_lost"]) == (8, 0)
    same_digests(tmp_path)


def test_who_breaks_off_in_a_step_that_does_not_count_is_started_again(jobs, tmp_path):
    """It forgot to ask `step.committed`; the others did not."""
    leaves = "if step.index == 7 and (step.committed or run.rank == 2 and once('left')): break"
    job = script(tmp_path, in_loop=leaves, first="if step.index == 7: all_inside()")
    result = jobs.run(job, chaos=["kind=exception,rank=1,step=7,at=collective"])
    assert result.code == 0, result.err[-3000:]
    assert "the loop was left in a step that did not count" in result.err
    assert [len(result.pids(r)) for r in range(4)] == [1, 1, 2, 1], result.incidents
    assert (result.outcome["steps"], result.outcome["steps_lost"]) == (8, 0)
    same_digests(tmp_path)


def test_all_who_leave_a_step_that_does_not_count_are_started_again(jobs, tmp_path):
    """Nobody asked `step.committed`, and its end is noticed only with the script's: the iterator has a name."""
    job = script(tmp_path, in_loop="if step.index == 7: break", loop="iter(run.steps(12))")
    result = jobs.run(job, chaos=["kind=exception,rank=1,step=7,at=collective"])
    assert result.code == 0, result.err[-3000:]
    assert "the loop was left in a step that did not count" in result.err
    assert result.outcome["steps"] == 8
    assert len({(tmp_path / f"digest{rank}").read_text().splitlines()[-1] for rank in range(4)}) == 1


def test_who_ends_for_good_in_a_step_that_does_not_count_is_started_again(jobs, tmp_path):
    """Python is not asked any more, and the exit code says that all is well."""
    leaves = "if step.index == 7: print(step.committed, flush=True); os._exit(0)"
    result = jobs.run(script(tmp_path, in_loop=leaves), chaos=["kind=exception,rank=1,step=7,at=collective"])
    assert result.code == 0, result.err[-3000:]
    assert "ended its script in a step that did not count" in result.err
    assert result.outcome["steps"] == 8


def test_collectives_after_a_block_that_does_not_count_do_not_meet_the_steps_of_others(jobs, tmp_path):
    """One rank comes to them early, while the others wait for it in their block: as large as what they exchange."""
    def digests(name, **kwargs):
        place = tmp_path / name
        place.mkdir()
        result = jobs.run(script(place, in_loop="dist.all_reduce(torch.full((72,), 100.0))"), **kwargs)
        assert result.code == 0, result.err[-3000:]
        same_digests(place)
        return (place / "digest0").read_text(), result

    with ThreadPoolExecutor(1) as aside:
        reference = aside.submit(digests, "reference")
        told, result = digests("early", chaos=["kind=exception,rank=1,step=7,at=begin"])
    assert result.policies() == ["retry"]
    assert [len(result.pids(r)) for r in range(4)] == [1, 1, 1, 1], result.incidents
    assert told == reference.result()[0]


@pytest.mark.parametrize("cure", ["dump", "reload"])
def test_a_death_with_what_nobody_else_knows_costs_no_step(jobs, tmp_path, cure):
    """The others cannot tell a replacement what came out: all start again, at once, with the state that they hold."""
    flags = [] if cure == "dump" else ["--recover-strategy", "retry,recover-in-place,exit"]
    result = jobs.run(script(tmp_path, in_loop="if step.committed: exchange(step)"), flags=flags)
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == [cure]
    told = "what rank 1 was told in a collective between two steps nobody else knows"
    assert any(told in why for why in result.incidents[0]["why"]), result.incidents[0]["why"]
    assert (result.outcome["steps"], result.outcome["steps_lost"]) == (12, 0)
    assert [len(result.pids(rank)) for rank in range(4)] == [2, 3, 2, 2]
    same_digests(tmp_path)


def _guarded(told):
    try:
        yield
    except GeneratorExit:
        told.append(was_broken(sys._getframe().f_back))
        raise


def _wrapped(told):
    yield from _guarded(told)


def _zipped(told):
    return zip("ab", _guarded(told), strict=False)


@pytest.mark.parametrize("make", [_guarded, _wrapped, _zipped])
def test_a_break_is_told_from_an_error(make):
    def leave(how):
        for _ in make(told):
            if how == "break":
                break
            if how == "return":
                return
            if how == "raise":
                raise KeyError
            sys.exit(3)

    told = []
    leave("break")
    leave("return")
    with pytest.raises(KeyError):
        leave("raise")
    with pytest.raises(SystemExit):
        leave("exit")
    assert told == [True, True, False, False]


SHORT = """
    import sys
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP
    import onward

    run = onward.init()
    model = DDP(torch.nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    run.protect(model=model, optimizer=opt)
    for step in run.steps(20 if run.rank == 0 or ENDS else 10):
        with step:
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
        if ENDS and step.committed and run.rank == 1 and step.index == 9:
            sys.exit()
"""


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_has_fewer_steps_than_the_others_is_named_at_once(jobs, tmp_path, ends):
    """Also where steps are so quick that nobody has seen how long they take: 30 minutes were waited for it."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SHORT).replace("ENDS", str(ends)))
    result = jobs.run(str(script), nproc=2, limit_s=90)
    assert result.code == 1, result.err
    assert result.outcome["reason"] == "the same failure 3 times with no progress"
    (incident,) = result.incidents
    assert incident["headline"] == "rank 1 ended its script before the others (exit code 0)"
    assert incident["step"] == 10
