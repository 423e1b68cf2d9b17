"""Random streams: Python's, NumPy's, torch's and the device's, as bytes.

They are looked at several times per step, and hardly ever all of them have moved. Reading Python's and NumPy's state
the official way costs tens of microseconds each; so their raw memory is compared first, where a check at start shows
that it is what we think it is.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, Protocol

import torch

_PYTHON_WORDS = 625


def tensor_bytes(t: torch.Tensor) -> bytes:
    return ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())


class Stream(Protocol):
    """A source of random numbers whose state can be read and put back."""

    def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...


class PythonStream:
    """The stream of the `random` module."""

    def __init__(self) -> None:
        self._raw = b""
        self._state = b""
        self._address = self._find()

    def _find(self) -> int:
        """Where CPython keeps the generator's words; 0 when it is not where we expect it."""
        instance = getattr(random, "_inst", None)
        if sys.implementation.name != "cpython" or instance is None:
            return 0
        address = id(instance) + object.__basicsize__
        words = struct.unpack("<625I", ctypes.string_at(address, 4 * _PYTHON_WORDS))
        expected = random.getstate()[1]
        return address if (*words[1:], words[0]) == expected else 0

    def read(self) -> bytes:
        if self._address:
            gauss = random._inst.gauss_next  # type: ignore[attr-defined]
            raw = ctypes.string_at(self._address, 4 * _PYTHON_WORDS) + repr(gauss).encode()
            if raw == self._raw:
                return self._state
            self._raw = raw
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
        self._address: int | None = None

    def _module(self) -> Any:
        numpy = sys.modules.get("numpy")
        return getattr(numpy, "random", None)

    def read(self) -> bytes:
        module = self._module()
        if module is None:
            return b""
        if self._address is None:
            try:
                self._address = int(module.mtrand._rand._bit_generator.ctypes.state_address)
            except AttributeError:
                self._address = 0
        if self._address:
            raw = ctypes.string_at(self._address, self._RAW_BYTES)
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

    def read(self) -> bytes:
        return tensor_bytes(torch.get_rng_state())

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
