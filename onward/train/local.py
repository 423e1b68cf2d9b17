"""Local state: what only this rank knows, kept safe outside the process at every commit.

RNG streams, buffers, positions in the data, gradients carried from step to step: they cannot come from a replica. Two
slots in shared memory, made in a directory of the agent's, hold them for the last two steps; the slot's step number is
written last, so a slot is either whole or not there. A redo in the same process and a replacement read the same slots.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import sys
import zlib
from typing import Any

import msgspec
import torch

from onward.errors import StateError
from onward.train.protected import Protected, _plain, _rebuild, _restore, _state_of, dtype_of

_HEADER = struct.Struct("<qqq")  # step, small bytes, offset of the tensors
_HEADER_ROOM = 64
_PAGE = 4096
_ALWAYS_BYTES = 256 << 10
_TENSOR = "\x00onward.local"


class Small(msgspec.Struct):
    """The small part: random streams and plain values."""

    torch_rng: bytes
    python_rng: bytes
    numpy_rng: bytes = b""
    device_rng: bytes = b""
    objects: bytes = b""
    tensors: list[tuple[str, str, tuple[int, ...], int]] = []  # path, dtype, shape, offset


class Slot:
    """One file: header, small part, tensors. Grown as needed, space reserved before it is written."""

    def __init__(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size < _PAGE:
                os.posix_fallocate(fd, 0, _PAGE)
                os.pwrite(fd, _HEADER.pack(-1, 0, 0), 0)
                size = _PAGE
            self.map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.seen: dict[str, tuple[int, int]] = {}  # path -> (id, version) of the tensor bytes in here
        self.layout: tuple[Any, ...] = ()
        self._views: dict[tuple[str, int], torch.Tensor] = {}

    def view(self, path: str, at: int, t: torch.Tensor) -> torch.Tensor:
        """The place of a tensor in this file, as a tensor."""
        found = self._views.get((path, at))
        if found is None or found.shape != t.shape or found.dtype != t.dtype:
            found = self._views[(path, at)] = _view(self.map, at, t)
        return found

    @property
    def step(self) -> int:
        value: int = _HEADER.unpack_from(self.map)[0]
        return value

    def reserve(self, size: int) -> None:
        if size <= len(self.map):
            return
        size = (size + size // 4 + _PAGE) // _PAGE * _PAGE
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size)
            self.map = mmap.mmap(fd, size)
            self._views = {}
        finally:
            os.close(fd)

    def small(self) -> Small:
        _, size, _ = _HEADER.unpack_from(self.map)
        blob = bytes(self.map[_HEADER_ROOM : _HEADER_ROOM + size])
        (crc,) = struct.unpack_from("<I", blob)
        if zlib.crc32(blob[4:]) != crc:
            raise StateError(f"the local state in {self.path} is damaged")
        return msgspec.msgpack.decode(blob[4:], type=Small)


class LocalState:
    """Captures, publishes and restores what only this rank knows."""

    def __init__(self, directory: str, protected: Protected) -> None:
        self._protected = protected
        self._slots = [Slot(os.path.join(directory, f"slot{i}")) for i in range(2)]
        self._position = _position(os.path.join(directory, "position"))
        self.carry_grads = False
        self.cursors: list[Any] = []  # batches: objects with `position` to keep and `rewind(position)` to restore

    @property
    def begun(self) -> int:
        """The last step whose block this rank began, in this process or in one before it; -1 for none."""
        return int(struct.unpack_from("<q", self._position)[0])

    @begun.setter
    def begun(self, step: int) -> None:
        struct.pack_into("<q", self._position, 0, step)

    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(s.step for s in self._slots if s.step >= 0))

    def slot(self, step: int) -> Slot:
        return self._slots[step % 2]

    def capture(self) -> Small:
        """The small part as of now."""
        return Small(
            torch_rng=_tensor_bytes(torch.get_rng_state()),
            python_rng=_python_rng(),
            numpy_rng=_numpy_rng(),
            device_rng=_device_rng(),
            objects=self._objects(),
        )

    def _objects(self) -> bytes:
        local = self._protected.local
        if not local and not self.cursors:
            return b""

        def refuse(path: str, t: torch.Tensor) -> Any:
            data = _tensor_bytes(t.detach().cpu().contiguous())
            return [_TENSOR, str(t.dtype).removeprefix("torch."), list(t.shape), data]

        values = {name: _plain(name, _state_of(obj), refuse) for name, obj in local.items()}
        return msgspec.msgpack.encode({"local": values, "cursors": [c.position for c in self.cursors]})

    def publish(self, step: int, small: Small) -> None:
        """Make `small` and the local tensors safe as those of `step`. The other slot stays as it is."""
        slot = self.slot(step)
        tensors = self._tensors()
        layout = tuple((path, str(t.dtype), tuple(t.shape)) for path, t in tensors)
        if layout != slot.layout:
            slot.seen, slot.layout = {}, layout
        offset = _align(_HEADER_ROOM + 65536 if len(small.objects) < 32768 else _HEADER_ROOM + 4 * len(small.objects))
        _, _, old_offset = _HEADER.unpack_from(slot.map)
        if old_offset > offset:
            offset = old_offset  # never move tensors that are still valid
        elif old_offset != offset:
            slot.seen = {}
        places, end = [], offset
        for path, t in tensors:
            places.append((path, str(t.dtype).removeprefix("torch."), tuple(t.shape), end))
            end = _align(end + t.numel() * t.element_size())
        small.tensors = places
        body = msgspec.msgpack.encode(small)
        blob = struct.pack("<I", zlib.crc32(body)) + body
        if _HEADER_ROOM + len(blob) > offset:
            offset_needed = _align(_HEADER_ROOM + 2 * len(blob))
            shift = offset_needed - offset
            small.tensors = [(p, d, s, o + shift) for p, d, s, o in places]
            places, end, offset, slot.seen = small.tensors, end + shift, offset_needed, {}
            body = msgspec.msgpack.encode(small)
            blob = struct.pack("<I", zlib.crc32(body)) + body
        _HEADER.pack_into(slot.map, 0, -1, 0, offset)
        slot.reserve(end)
        into, out_of = [], []
        for (path, _, _, at), (_, t) in zip(places, tensors, strict=True):
            size = t.numel() * t.element_size()
            mark = (id(t), t._version)
            # Kernels such as batch_norm write running statistics without counting a version: only what is too large to
            # be copied every step is believed to be unchanged.
            if size and (size <= _ALWAYS_BYTES or slot.seen.get(path) != mark):
                into.append(slot.view(path, at, t))
                out_of.append(t.detach())
                slot.seen[path] = mark
        if into:
            torch._foreach_copy_(into, out_of)
        slot.map[_HEADER_ROOM : _HEADER_ROOM + len(blob)] = blob
        _HEADER.pack_into(slot.map, 0, step, len(blob), offset)

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        out = self._protected.buffers()
        if self.carry_grads:
            out = out + [
                (f"grad:{path}", p.grad) for path, p in self._protected.parameters() if p.grad is not None
            ]
        return out

    def restore(self, step: int) -> None:
        """Put this rank's local state back to that of `step`."""
        slot = self.slot(step)
        if slot.step != step:
            raise StateError(f"the local state of step {step} is not here (slots hold {self.steps()})")
        small = slot.small()
        mine = dict(self._protected.buffers())
        params = dict(self._protected.parameters())
        for path, dtype, shape, at in small.tensors:
            if path.startswith("grad:"):
                p = params[path[5:]]
                p.grad = torch.empty(shape, dtype=dtype_of(dtype), device=p.device)
                _read_tensor(slot.map, at, p.grad)
            elif path in mine:
                _read_tensor(slot.map, at, mine[path])
                slot.seen[path] = (id(mine[path]), mine[path]._version)
        self._restore_objects(small.objects)
        _set_python_rng(small.python_rng)
        _set_numpy_rng(small.numpy_rng)
        _set_device_rng(small.device_rng)
        torch.set_rng_state(torch.frombuffer(bytearray(small.torch_rng), dtype=torch.uint8))

    def _restore_objects(self, blob: bytes) -> None:
        if not blob:
            return
        values = msgspec.msgpack.decode(blob)
        for name, obj in self._protected.local.items():
            if name in values["local"]:
                _restore(obj, _rebuild(_local_tensors(values["local"][name]), [], _state_of(obj)))
        for cursor, position in zip(self.cursors, values["cursors"], strict=False):
            cursor.rewind(position)


def _local_tensors(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 4 and value[0] == _TENSOR:
        data = bytearray(value[3]) or bytearray(0)
        flat = torch.frombuffer(data, dtype=dtype_of(value[1])) if data else torch.empty(0, dtype=dtype_of(value[1]))
        return flat.reshape(value[2])
    if isinstance(value, list):
        return [_local_tensors(v) for v in value]
    if isinstance(value, dict):
        return {k: _local_tensors(v) for k, v in value.items()}
    return value


def same(a: Small, b: Small) -> bool:
    return (
        a.torch_rng == b.torch_rng
        and a.python_rng == b.python_rng
        and a.numpy_rng == b.numpy_rng
        and a.device_rng == b.device_rng
        and a.objects == b.objects
    )


# ------------------------------------------------------------------------------------------- bytes


def _position(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(fd).st_size < 8:
            os.pwrite(fd, struct.pack("<q", -1), 0)
        return mmap.mmap(fd, 8)
    finally:
        os.close(fd)


def _align(n: int) -> int:
    return (n + 63) // 64 * 64


def _tensor_bytes(t: torch.Tensor) -> bytes:
    return ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())


def _view(m: mmap.mmap, at: int, t: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(m, dtype=t.dtype, count=t.numel(), offset=at).view(t.shape)


def _read_tensor(m: mmap.mmap, at: int, t: torch.Tensor) -> None:
    if t.numel():
        with torch.no_grad():
            t.detach().copy_(_view(m, at, t))


def _python_rng() -> bytes:
    version, words, gauss = random.getstate()
    flag = b"" if gauss is None else struct.pack("<d", gauss)
    return struct.pack(f"<i{len(words)}I", version, *words) + flag


def _set_python_rng(data: bytes) -> None:
    (version,) = struct.unpack_from("<i", data)
    words = struct.unpack_from("<625I", data, 4)
    rest = data[4 + 625 * 4 :]
    random.setstate((version, words, struct.unpack("<d", rest)[0] if rest else None))


def _numpy_rng() -> bytes:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return b""
    name, keys, pos, has_gauss, cached = numpy.random.get_state()
    if name != "MT19937":
        return b""
    return struct.pack("<iid", pos, has_gauss, cached) + bytes(keys.tobytes())


def _set_numpy_rng(data: bytes) -> None:
    numpy = sys.modules.get("numpy")
    if not data or numpy is None:
        return
    pos, has_gauss, cached = struct.unpack_from("<iid", data)
    keys = numpy.frombuffer(data[16:], dtype=numpy.uint32).copy()
    numpy.random.set_state(("MT19937", keys, pos, has_gauss, cached))


def _device_rng() -> bytes:
    if not torch.cuda.is_initialized():
        return b""
    return _tensor_bytes(torch.cuda.get_rng_state())


def _set_device_rng(data: bytes) -> None:
    if data and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))
