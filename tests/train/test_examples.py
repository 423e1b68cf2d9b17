"""The examples do what they are there for: images offline, training that a kill does not change, the plain scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch


def make_images(out: Path) -> Path:
    command = [sys.executable, str(ROOT / "examples/make_mnist.py"), "--out", str(out), "--per_class", "8"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


def arguments(images: Path) -> tuple[str, ...]:
    folders = ("--training_data", str(images / "training"), "--validation_data", str(images / "testing"))
    return ("--num_epochs", "4", *folders, "--batch_size", "8")


def test_the_same_images_are_made_again(images, tmp_path):
    def contents(place):
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*.png")}

    made = contents(images)
    assert sorted({name.rpartition("/")[0] for name in made}) == sorted(
        f"{part}/{digit}" for part in ("training", "testing") for digit in range(10)
    )
    assert len(made) == 10 * (8 + 2)
    assert contents(make_images(tmp_path)) == made


def test_images_are_learnt_and_a_kill_changes_nothing(jobs, images):
    """One in the forward pass, one in the evaluation between two steps: 10 steps are an epoch."""
    faults = ["kind=kill,rank=1,step=5,at=forward", "kind=kill,rank=0,step=20,at=collective"]
    script = "examples/mnist_ddp.py"
    reference, result = jobs.beside_reference(script, *arguments(images), nproc=2, chaos=faults)
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"] * 2
    assert (result.outcome["steps"], result.outcome["steps_lost"]) == (40, 0)
    told = [line for line in result.err.splitlines() if "accuracy" in line]
    assert [line.split("epoch ")[1].split()[0] for line in told] == ["1", "2", "3", "4"]
    assert float(told[-1].split()[-1]) > 0.3, "it has learnt something"
    jobs.same_state(reference, result)


@pytest.mark.parametrize("name", ["gpt", "mnist_ddp"])
def test_the_plain_scripts_train_too(jobs, images, name):
    args = arguments(images) if name == "mnist_ddp" else ("--steps", "6")
    result = jobs.run(f"examples/plain/{name}.py", *args, nproc=2)
    assert result.code == 0, result.err[-3000:]
    assert result.outcome["incidents"] == []
    assert all(Path(f"{result.digest}.{rank}.pt").exists() for rank in range(2))
