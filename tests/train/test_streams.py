"""Random streams: whatever draws from them, and however little, the next look shows it."""

from __future__ import annotations

import random

import pytest
import torch

from onward.train.streams import NumpyStream, PythonStream, TorchStream, tensor_bytes

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

TORCH = {
    "a float": lambda: torch.rand(1),
    "a normal float, of which there are two": lambda: torch.randn(1),
    "a normal double": lambda: torch.randn(1, dtype=torch.float64),
    "normals by mean": lambda: torch.normal(0.0, torch.ones(1, dtype=torch.float64)),
    "many": lambda: torch.randn(2000),
    "a permutation": lambda: torch.randperm(7),
    "a mask": lambda: torch.nn.functional.dropout(torch.ones(10), 0.5),
    "a seed": lambda: torch.manual_seed(3),
    "the state as it was": lambda: torch.set_rng_state(torch.get_rng_state()),
}
PYTHON = {
    "a float": random.random,
    "a normal number, of which there are two": lambda: random.gauss(0, 1),
    "bits": lambda: random.getrandbits(1),
    "a seed": lambda: random.seed(3),
}
NUMPY = {
    "a float": lambda: numpy.random.rand(),
    "a normal number, of which there are two": lambda: numpy.random.randn(),
    "a seed": lambda: numpy.random.seed(3),
}


@pytest.mark.parametrize("what", TORCH)
def test_torch(what):
    stream = TorchStream()
    stream.read()
    for _ in range(5):
        TORCH[what]()
        assert stream.read() == tensor_bytes(torch.get_rng_state())
        assert stream.read() == tensor_bytes(torch.get_rng_state())


@pytest.mark.parametrize(
    ("kind", "draw"), [(PythonStream, f) for f in PYTHON.values()] + [(NumpyStream, f) for f in NUMPY.values()]
)
def test_python_and_numpy(kind, draw):
    looking = kind()
    looking.read()
    for _ in range(5):
        draw()
        assert looking.read() == kind().read(), "one that has never looked before sees the same"


@pytest.mark.parametrize("kind", [TorchStream, PythonStream, NumpyStream])
def test_what_was_read_can_be_put_back(kind):
    stream = kind()
    draw = {TorchStream: TORCH, PythonStream: PYTHON, NumpyStream: NUMPY}[kind]["a float"]
    before = stream.read()
    first = draw()
    stream.write(before)
    assert stream.read() == before
    assert draw() == first


def test_torchs_generator_is_where_we_think():
    assert TorchStream()._memory is not None
