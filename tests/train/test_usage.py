"""Wrong use of the library gets a sentence that says what to do, and all problems at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.torch

SETUP = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import onward
from onward import UsageError

def problem(call):
    try:
        call()
    except UsageError as e:
        return str(e)
    raise SystemExit("no UsageError")
"""

CASES = """
run = onward.init()
model = DDP(nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)

text = problem(lambda: run.protect(count=3, thing=object(), fine=model))
assert "count is a plain int" in text and "thing (object)" in text, text

text = problem(lambda: run.protect())
assert "at least one object" in text, text

class Odd:
    def state_dict(self):
        return {"inner": {"when": object()}}
    def load_state_dict(self, s):
        pass
text = problem(lambda: run.protect(odd=Odd()))
assert "odd.inner.when is a object" in text, text

text = problem(lambda: run.batches(list(range(10)), global_batch=3))
assert "multiple of the 2 ranks" in text, text
text = problem(lambda: run.batches(list(range(10)), global_batch=64))
assert "fewer than one global batch" in text, text
text = problem(lambda: run.batches(5))
assert "iterable" in text, text
text = problem(lambda: run.steps("many"))
assert "number of steps" in text, text

run.protect(model=model, optimizer=opt)
text = problem(lambda: onward.init())
assert "called before" in text, text

import numpy
for step in run.steps(numpy.int64(3)):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        opt.zero_grad()
    text = problem(lambda: step.__enter__())
    assert "entered once" in text, text

text = problem(lambda: run.steps(3))
assert "used before" in text and "step.index // steps_per_epoch" in text, text
text = problem(lambda: run.protect(more=model))
assert "before the first step" in text, text
print("all refused", flush=True)
"""

NO_WITH = """
run = onward.init()
model = DDP(nn.Linear(4, 4))
run.protect(model=model)
for step in run.steps(3):
    pass
"""


def start(tmp_path, body, flags=()):
    script = tmp_path / "script.py"
    script.write_text(SETUP + textwrap.dedent(body))
    command = [sys.executable, "-m", "onward.cli.main", "run", "--nproc-per-node", "2", *flags, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_misuse_is_refused_with_a_sentence(tmp_path):
    p = start(tmp_path, CASES)
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stdout.count("all refused") == 2


def test_a_step_that_is_not_entered(tmp_path):
    p = start(tmp_path, NO_WITH)
    assert p.returncode == 1
    assert "must run the step: `with step: ...`" in p.stderr


def test_outside_the_launcher(tmp_path):
    p = subprocess.run(
        [sys.executable, "-c", "import onward; onward.init()"], capture_output=True, text=True, timeout=120, check=False
    )
    assert p.returncode == 1
    assert "onward run --nproc-per-node N" in p.stderr


def test_after_init_process_group(tmp_path):
    p = start(tmp_path, "import torch.distributed as dist\ndist.init_process_group('gloo')\nonward.init()\n")
    assert p.returncode == 1
    assert "instead of init_process_group" in p.stderr


def test_a_change_outside_the_block_is_named_and_what_ranks_do_not_share(tmp_path):
    body = """
    run = onward.init()
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2)
    seen, total = {"loss": 0.0}, {"steps": 0}
    run.protect(model=model, opt=opt, schedule=schedule, seen=seen, total=total)
    for step in run.steps(6):
        with step:
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
            seen["loss"], total["steps"] = float(run.rank), step.index
        schedule.step()
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
    """
    p = start(tmp_path, body)
    assert p.returncode == 0, p.stderr
    assert "a parameter was changed outside a step" in p.stderr
    assert "opt (its" not in p.stderr, "a schedule may be stepped there"
    unlike = [line for line in p.stderr.splitlines() if "is not the same here as on rank 0" in line]
    assert len(unlike) == 1, p.stderr
    assert "rank 1: seen is protected as the same on every rank" in unlike[0]


LATER = """
import datetime
run = onward.init()
model = DDP(nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
stats = {"n": 0}
run.protect(model=model, optimizer=opt, stats=stats)
for step in run.steps(12):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        opt.zero_grad()
        stats["n"] += 1
        if step.index == 3:
            stats["when"] = datetime.date(2020, 1, 1)
        if step.index == WHERE:
            opt.state[model.module.weight]["why"] = object()
if run.rank == 0:
    print("n", stats["n"], stats["when"], flush=True)
"""


@pytest.mark.parametrize("kind", ["exception", "kill"])
def test_what_comes_in_later_and_cannot_be_given_to_anybody_is_named_at_the_next_step(tmp_path, kind):
    """A redo needs nobody's help; a death costs a start of all, at once, and the screen says why."""
    p = start(tmp_path, LATER.replace("WHERE", "-1"), ("--hang-floor", "4", "--chaos", f"kind={kind},rank=1,step=8"))
    assert p.returncode == 0, p.stdout + p.stderr
    assert "n 12 2020-01-01" in p.stdout
    said = [line for line in p.stderr.splitlines() if "rank 0: stats.when is a date; protected state is" in line]
    assert len(said) == (2 if kind == "kill" else 1), p.stderr  # by each process once
    assert "should a rank die, all start again" in said[0]
    told = "nobody can be given the state, stats.when is a date; restarting all 2 ranks; starting from the beginning"
    assert (told in p.stderr) == (kind == "kill"), p.stderr
    assert "8 steps lost" in p.stderr if kind == "kill" else " 0 steps lost" in p.stderr


def test_what_an_optimizer_keeps_is_looked_at_too(tmp_path):
    p = start(tmp_path, LATER.replace("WHERE", "5").replace("stats[\"when\"]", "kept"))
    assert "rank 0: optimizer/0.0/why is a object; protected state is" in p.stderr


FORGOTTEN = """
run = onward.init()
model = DDP(nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=MOMENTUM)
class Trainer:
    def state_dict(self):
        return {"optimizer": opt.state_dict()}
    def load_state_dict(self, state):
        opt.load_state_dict(state["optimizer"])
run.protect(model=model, MORE)
for step in run.steps(4):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("momentum", "more", "said"),
    [("0.9", "", 2), ("0", "", 0), ("0.9", "trainer=Trainer()", 0)],
)
def test_an_optimizer_that_was_forgotten_is_named_where_it_keeps_something(tmp_path, momentum, more, said):
    p = start(tmp_path, FORGOTTEN.replace("MOMENTUM", momentum).replace("MORE", more))
    assert p.returncode == 0, p.stderr
    assert p.stderr.count("an optimizer (SGD) that is not protected keeps state") == said, p.stderr


OWN_LOOP = """
from onward.train.link import Link

sent, send = [], Link.send
Link.send = lambda self, message: (sent.append(type(message).__name__), send(self, message))[1]

run = onward.init()
model = DDP(nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
run.protect(model=model, optimizer=opt)
caught, committed, traffic = [], [], []
for step in run.steps(14):
    with step:
        try:
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
        except Exception as e:      # a user who takes everything for his own
            caught.append(e)
    if step.committed:
        committed.append(step.index)
        traffic.append(len(sent))
if run.rank == 0:
    print("caught", caught, "committed", committed == list(range(14)), "sent", sent[traffic[-4] : traffic[-1]])
"""


def test_the_users_loop_is_safe_and_not_slowed(tmp_path):
    """A fault elsewhere reaches no `except Exception`; steps send no message: no hop is waited on."""
    p = start(tmp_path, OWN_LOOP, ("--chaos", "kind=kill,rank=1,step=5", "--hang-floor", "4"))
    assert p.returncode == 0, p.stderr
    assert "caught [] committed True sent []" in p.stdout, p.stdout
