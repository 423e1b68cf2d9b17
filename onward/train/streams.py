"""Random streams: Python's, NumPy's, torch's and the device's, as bytes.

They are looked at several times per step, and hardly ever all of them have moved. Reading their states the official way
costs tens of microseconds each; so their raw memory is compared first, where a check at start shows that it is what we
think it is.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, Protocol

import torch

_PYTHON_WORDS = 625


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def memory_of(t: torch.Tensor) -> memoryview:
    """Its bytes, where they are. A device's addresses mean nothing here: reading there would end the process."""
    if not t.is_cpu:
        raise TypeError(f"a tensor on {t.device} has no memory that this process can read; copy it to the CPU first")
    size = t.numel() * t.element_size()
    return _memory(t.data_ptr(), size) if size else memoryview(b"")


def tensor_bytes(t: torch.Tensor) -> bytes:
    return bytes(memory_of(t))


class Stream(Protocol):
    """A source of random numbers whose state can be read and put back."""

    def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...


class PythonStream:
    """The stream of the `random` module."""

    def __init__(self) -> None:
        self._raw = b""
        self._gauss: float | None = None
        self._state = b""
        self._memory = self._find()

    def _find(self) -> memoryview | None:
        """Where CPython keeps the generator's words; None when they are not where we expect them."""
        instance = getattr(random, "_inst", None)
        if sys.implementation.name != "cpython" or instance is None:
            return None
        memory = _memory(id(instance) + object.__basicsize__, 4 * _PYTHON_WORDS)
        words = struct.unpack("<625I", memory)
        expected = random.getstate()[1]
        return memory if (*words[1:], words[0]) == expected else None

    def read(self) -> bytes:
        if self._memory is not None:
            raw, gauss = self._memory.tobytes(), random._inst.gauss_next  # type: ignore[attr-defined]
            if raw == self._raw and gauss == self._gauss:
                return self._state
            self._raw, self._gauss = raw, gauss
        version, words, gauss = random.getstate()
        tail = b"" if gauss is None else struct.pack("<d", gauss)
        self._state = struct.pack(f"<i{_PYTHON_WORDS}I", version, *words) + tail
        return self._state

    def write(self, data: bytes) -> None:
        (version,) = struct.unpack_from("<i", data)
        words = struct.unpack_from(f"<{_PYTHON_WORDS}I", data, 4)
        rest = data[4 + 4 * _PYTHON_WORDS :]
        random.setstate((version, words, struct.unpack("<d", rest)[0] if rest else None))


class NumpyStream:
    """NumPy's global (legacy) stream; nothing while NumPy is not loaded."""

    _RAW_BYTES = 624 * 4 + 4

    def __init__(self) -> None:
        self._raw = b""
        self._state = b""
        self._pending = True  # a normal number is held back: it can be drawn without the words moving
        self._memory: memoryview | None = None
        self._sought = False

    def _module(self) -> Any:
        numpy = sys.modules.get("numpy")
        return getattr(numpy, "random", None)

    def read(self) -> bytes:
        module = self._module()
        if module is None:
            return b""
        if not self._sought:
            self._sought = True
            try:
                address = int(module.mtrand._rand._bit_generator.ctypes.state_address)
                self._memory = _memory(address, self._RAW_BYTES)
            except AttributeError:
                pass
        if self._memory is not None:
            raw = self._memory.tobytes()
            if raw == self._raw and not self._pending:
                return self._state
            self._raw = raw
        name, keys, pos, has_gauss, cached = module.get_state()
        if name != "MT19937":
            return b""
        self._pending = bool(has_gauss)
        self._state = struct.pack("<iid", pos, has_gauss, cached) + bytes(keys.tobytes())
        return self._state

    def write(self, data: bytes) -> None:
        module = self._module()
        if not data or module is None:
            return
        pos, has_gauss, cached = struct.unpack_from("<iid", data)
        keys = sys.modules["numpy"].frombuffer(data[16:], dtype="uint32").copy()
        module.set_state(("MT19937", keys, pos, has_gauss, cached))
        self._pending = True


class TorchStream:
    """torch's CPU stream."""

    _WORDS = 624
    _BEFORE, _AFTER = 24, 32  # bytes around the words: seed and position before, normal numbers held back after

    def __init__(self) -> None:
        self._raw = b""
        self._state = b""
        self._memory = self._find()

    def _find(self) -> memoryview | None:
        """Where torch keeps the generator's words and what belongs to them; None when we do not find them."""
        if sys.implementation.name != "cpython":
            return None
        generator = torch.default_generator
        words = struct.unpack_from(f"<{self._WORDS}Q", tensor_bytes(generator.get_state()), 24)
        looked_for = struct.pack(f"<{self._WORDS}I", *words)
        (impl,) = struct.unpack("<Q", ctypes.string_at(id(generator) + object.__basicsize__, 8))
        at = ctypes.string_at(impl, 256 + len(looked_for)).find(looked_for)
        if at < self._BEFORE:
            return None
        return _memory(impl + at - self._BEFORE, self._BEFORE + len(looked_for) + self._AFTER)

    def read(self) -> bytes:
        if self._memory is not None:
            raw = self._memory.tobytes()
            if raw == self._raw:
                return self._state
            self._raw = raw
        self._state = tensor_bytes(torch.default_generator.get_state())
        return self._state

    def write(self, data: bytes) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))


class DeviceStream:
    """The stream of the current CUDA or NPU device; nothing while neither is initialised."""

    def _module(self) -> Any:
        for kind in ("cuda", "npu"):
            module = getattr(torch, kind, None)
            if module is not None and module.is_initialized():
                return module
        return None

    def read(self) -> bytes:
        module = self._module()
        return tensor_bytes(module.get_rng_state()) if module is not None else b""

    def write(self, data: bytes) -> None:
        module = self._module()
        if data and module is not None:
            module.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))
