"""The copy in memory under kill -9: at every moment a buffer is whole or holds nothing."""

from __future__ import annotations

import mmap
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from waiting import until

from onward.checkpoints import memory
from onward.errors import StateError
from onward.train.buckets import Buckets
from onward.train.checkpoint import Buffers
from onward.train.groups import Groups
from onward.train.protected import Protected
from onward.train.tensorfile import Layout, fill, open_file


def state(value: float, size: int = 1 << 20) -> Protected:
    p = Protected(Buckets(Groups(None, "", 1.0)))
    p.add("flat", torch.full((size,), value))
    flags = torch.tensor([True, False])
    p.add("mixed", {"half": torch.full((3,), value).half(), "n": 7, "flags": flags, "deep": [1, b"x"]})
    return p


def held(directory: Path) -> dict[int, float]:
    """What each whole buffer holds; fails when it holds a mixture."""
    found = {}
    for step, (path, _) in memory.buffers(directory).items():
        with open(path, "rb") as f:
            manifest, tensors = open_file(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY), memory.PAGE)
        assert manifest.step == step
        values = {float(t.float().max()) for t in tensors if t.dtype != torch.bool}
        values |= {float(t.float().min()) for t in tensors if t.dtype != torch.bool}
        assert len(values) == 1, f"step {step} is a mixture of {values}"
        found[step] = values.pop()
    return found


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    buffers = Buffers(tmp_path)
    for step in (1, 2, 3):
        buffers.keep(step, *state(step).describe(step, 4))
    assert held(tmp_path) == {2: 2.0, 3: 3.0}, "the two newest"
    target = state(0.0)
    path, _ = memory.buffers(tmp_path)[3]
    with open(path, "rb") as f:
        manifest, tensors = open_file(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY), memory.PAGE)
    assert manifest.last_sync == 4
    places = target.targets(manifest)
    for place, t in zip(places, tensors, strict=True):
        place.copy_(t)
    target.accept(manifest, places)
    assert float(target.objects["flat"].min()) == 3.0
    assert target.objects["mixed"]["deep"] == [1, b"x"]


def test_a_killed_copy_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    rng = random.Random(1)

    def killed_in_the_middle() -> bool:
        first = max(memory.buffers(tmp_path), default=0) + 1
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            buffers = Buffers(tmp_path)
            for step in range(first, first + 1000):
                buffers.keep(step, *state(float(step % 97)).describe(step, 0))
            os._exit(0)
        time.sleep(rng.uniform(0.005, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found = held(tmp_path)
        assert all(value == step % 97 for step, value in found.items())
        return len(found) == 1

    times = [killed_in_the_middle() for _ in range(24)]
    assert any(times) or until(killed_in_the_middle, "one that is killed in the middle of a copy")


def test_no_room_for_a_copy_is_an_error_and_takes_no_room(tmp_path: Path) -> None:
    Buffers(tmp_path).keep(1, *state(1.0, 1000).describe(1, 0))
    described = state(2.0).describe(2, 0)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # the others did not come along
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        try:
            Buffers(tmp_path).keep(2, *described)
        except OSError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert held(tmp_path) == {1: 1.0}, "what was there is still there"
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 64 << 10


def test_any_reader_of_safetensors_can_open_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    manifest, tensors = state(5.0, 10).describe(1, 0)
    layout = Layout(manifest)
    data = bytearray(layout.size)
    fill(data, 0, layout, tensors)
    (tmp_path / "f.safetensors").write_bytes(data)
    loaded = load_file(tmp_path / "f.safetensors")
    assert loaded["flat"].tolist() == [5.0] * 10
    assert loaded["mixed.half"].dtype == torch.float16
    assert loaded["mixed.flags"].tolist() == [True, False]


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x10" + b"\0" * 7 + b'{"a": 1}' + b" " * 100])
def test_what_is_no_state_file_is_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        open_file(bytearray(data or b"\0"), 0)
