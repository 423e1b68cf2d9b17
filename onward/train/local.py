"""Local state: what only this rank knows, kept safe outside the process at every commit.

RNG streams, buffers, positions in the data, gradients carried from step to step: they cannot come from a replica. Two
slots in shared memory, made in a directory of the agent's, hold them for the last two steps; the slot's step number is
written last, so a slot is either whole or not there. A redo in the same process and a replacement read the same slots.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import torch

from onward.checkpoints import memory
from onward.errors import StateError
from onward.train.partner import Partner
from onward.train.protected import ERROR, Protected
from onward.train.streams import DeviceStream, NumpyStream, PythonStream, Stream, TorchStream, tensor_bytes
from onward.train.values import SMALL_BYTES, TensorRef, dtype_of, own_tensors, plain, state_of, take_over

_HEADER = struct.Struct("<qqqqq")  # step, bytes of the small part, room for it, bytes of the layout, early or not
_HEADER_ROOM = 64
_PAGE = 4096


class Small(msgspec.Struct):
    """The small part: random streams and plain values."""

    python: bytes
    numpy: bytes
    torch: bytes
    device: bytes
    objects: bytes = b""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor stands in a slot."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Slot:
    """One file: header, small part, layout, tensors. Grown as needed, space reserved before it is written."""

    def __init__(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size < _PAGE:
                os.posix_fallocate(fd, 0, _PAGE)
                os.pwrite(fd, _HEADER.pack(-1, 0, 0, 0, 0), 0)
                size = _PAGE
        finally:
            os.close(fd)
        self._map()
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._room = 0  # for the small part
        self._layout_bytes = self._used = 0
        self._into: list[torch.Tensor] = []
        self._from: list[torch.Tensor] = []
        self._large: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[int] = []

    def _map(self) -> None:
        fd = os.open(self.path, os.O_RDWR)
        try:
            found = os.fstat(fd)
            self.map = mmap.mmap(fd, found.st_size)
            self._mapped = (found.st_ino, found.st_size)
        finally:
            os.close(fd)

    @property
    def step(self) -> int:
        value: int = _HEADER.unpack_from(self.map)[0]
        return value

    def write(self, step: int, body: bytes, tensors: list[tuple[str, torch.Tensor]], early: bool = False) -> None:
        """Make this slot hold `step`: whole, or not at all. `early`: the step before it has not ended."""
        # Whole words, in this order: a kill at any point leaves a slot that is either whole or says it holds nothing.
        memoryview(self.map).cast("q")[0] = -1
        known = self._tensors
        if len(body) + 4 > self._room or len(known) != len(tensors) or any(
            k is not t for k, (_, t) in zip(known, tensors, strict=True)
        ):
            self._lay_out(len(body) + 4, tensors)
        if self._into:
            torch._foreach_copy_(self._into, self._from)
        for i, (view, t) in enumerate(self._large):
            if t._version != self._versions[i]:
                view.copy_(t)
                self._versions[i] = t._version
        blob = struct.pack("<I", zlib.crc32(body)) + body
        self.map[_HEADER_ROOM : _HEADER_ROOM + len(blob)] = blob
        words = memoryview(self.map).cast("q")
        words[1], words[2], words[3], words[4] = len(blob), self._room, self._layout_bytes, early
        words[0] = step

    def _lay_out(self, need: int, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Decide what stands where. The tensors are all copied at the next write."""
        self._room = _align(max(2 * need, 16384))
        places, at = [], 0
        for path, t in tensors:
            places.append(Place(path, str(t.dtype).removeprefix("torch."), tuple(t.shape), at))
            at = _align(at + t.numel() * t.element_size())
        layout = msgspec.msgpack.encode(places)
        self._layout_bytes = len(layout)
        start = _align(_HEADER_ROOM + self._room + len(layout))
        self._reserve(start + at)
        self._used = start + at
        self.map[_HEADER_ROOM + self._room : _HEADER_ROOM + self._room + len(layout)] = layout
        self._tensors = tuple(t for _, t in tensors)
        self._into, self._from, self._large, self._versions = [], [], [], []
        for place, (_, t) in zip(places, tensors, strict=True):
            if not t.numel():
                continue
            view = _view(self.map, start + place.offset, t)
            # Kernels such as batch_norm write running statistics without counting a version: only what is too large to
            # be copied every step is believed to be unchanged when its version is.
            if t.numel() * t.element_size() <= SMALL_BYTES:
                self._into.append(view)
                self._from.append(t.detach())
            else:
                self._large.append((view, t.detach()))
                self._versions.append(-1)

    def refresh(self) -> None:
        """An agent may have put another file in its place, with what an earlier process had kept elsewhere."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if (found.st_ino, found.st_size) != self._mapped:
                self._map()
                self._tensors, self._room, self._used = (), 0, 0  # what was laid out was so in the other file

    def content(self) -> bytes:
        """All that is written, for somebody who keeps a copy."""
        return self.map[: self._used or len(self.map)]  # whole, where an earlier process had laid it out

    def _reserve(self, size: int) -> None:
        if size <= len(self.map):
            return
        size = (size + size // 4 + _PAGE) // _PAGE * _PAGE
        memory.reserve(Path(self.path), size)
        self._map()

    def read(self) -> tuple[Small, list[Place], int]:
        """The small part, the places of the tensors, and where the tensors begin."""
        _, size, room, layout, _ = _HEADER.unpack_from(self.map)
        blob = bytes(self.map[_HEADER_ROOM : _HEADER_ROOM + size])
        (crc,) = struct.unpack_from("<I", blob)
        if zlib.crc32(blob[4:]) != crc:
            raise StateError(f"the local state in {self.path} is damaged")
        small = msgspec.msgpack.decode(blob[4:], type=Small)
        at = _HEADER_ROOM + room
        places = msgspec.msgpack.decode(self.map[at : at + layout], type=list[Place])
        return small, places, _align(at + layout)

    def image(self) -> bytes:
        """The whole slot, as it can be put back elsewhere."""
        return bytes(self.map)

    def confirm(self) -> None:
        """What was written early is so."""
        memoryview(self.map).cast("q")[4] = 0

    def clear(self) -> None:
        """Hold nothing."""
        memoryview(self.map).cast("q")[0] = -1

    def put_image(self, image: bytes) -> None:
        """Become what another slot was: whole, or nothing."""
        memoryview(self.map).cast("q")[0] = -1
        self._reserve(len(image))
        self.map[8 : len(image)] = image[8:]
        self._tensors, self._room = (), 0  # the next write lays everything out anew
        memoryview(self.map).cast("q")[0] = struct.unpack_from("<q", image)[0]


class LocalState:
    """Captures, publishes and restores what only this rank knows."""

    def __init__(self, directory: str, protected: Protected, partner: Partner) -> None:
        self.partner = partner
        self._protected = protected
        self._directory = directory
        self._slots = [Slot(os.path.join(directory, f"slot{i}")) for i in range(2)]
        self._position = _position(os.path.join(directory, "position"))
        self._streams: tuple[Stream, ...] = (PythonStream(), NumpyStream(), TorchStream(), DeviceStream())
        self._kept: list[Slot] = []  # the real ones, while others are used
        self.carry_grads = False
        self.cursors: list[Any] = []  # batches: objects with `position` to keep and `rewind(position)` to restore

    def aside(self) -> None:
        """From now on use slots that nobody else looks at: what this process does may come to nothing."""
        self._kept = self._slots
        self._slots = [Slot(os.path.join(self._directory, f"aside{i}")) for i in range(2)]

    def back(self, keep: bool) -> None:
        """To the real slots; with `keep`, what was published since stands in them."""
        if not self._kept:
            return
        aside, self._slots, self._kept = self._slots, self._kept, []
        for slot, real in zip(aside, self._slots, strict=True):
            if keep and slot.step >= 0:
                real.refresh()
                real.put_image(slot.content())
            memory.remove(Path(slot.path))

    def refresh(self) -> None:
        """Use the files that are there now: what is written to others is seen by nobody."""
        for slot in self._slots:
            slot.refresh()

    def forget(self) -> None:
        """Nothing is safe here any more."""
        self.refresh()
        for slot in self._slots:
            slot.clear()

    def put(self, step: int, image: bytes) -> None:
        """Another's local state of `step` is this rank's: put it in its place, here and in use."""
        self.slot(step).put_image(image)
        self.restore(step)

    @property
    def begun(self) -> int:
        """The last step whose block this rank began, in this process or in one before it; -1 for none."""
        return int(struct.unpack_from("<q", self._position)[0])

    @begun.setter
    def begun(self, step: int) -> None:
        memoryview(self._position).cast("q")[0] = step

    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(s.step for s in self._slots if s.step >= 0))

    def slot(self, step: int) -> Slot:
        return self._slots[step % 2]

    def capture(self) -> Small:
        """The small part as of now."""
        python, numpy, cpu, device = (stream.read() for stream in self._streams)
        return Small(python=python, numpy=numpy, torch=cpu, device=device, objects=self._objects())

    def _objects(self) -> bytes:
        local = self._protected.local
        if not local and not self.cursors:
            return b""

        tensors: list[tuple[str, str, list[int], bytes]] = []
        taken: dict[int, tuple[torch.Tensor, TensorRef]] = {}  # by id

        def take(path: str, t: torch.Tensor) -> TensorRef:
            if id(t) not in taken:
                taken[id(t)] = (t, TensorRef(len(tensors)))
                data = tensor_bytes(t.detach().cpu().contiguous())
                tensors.append((path, str(t.dtype).removeprefix("torch."), list(t.shape), data))
            return taken[id(t)][1]

        values = {name: plain(name, state_of(obj), take) for name, obj in local.items()}
        cursors = [c.position for c in self.cursors]
        return msgspec.msgpack.encode({"local": values, "tensors": tensors, "cursors": cursors})

    def publish(self, step: int, small: Small, early: bool = False) -> None:
        """Make `small` and the local tensors safe as those of `step`. The other slot stays as it is."""
        slot = self.slot(step)
        slot.write(step, msgspec.msgpack.encode(small), self._tensors(), early)
        if self.partner.there:
            self.partner.keep(step % 2, step, slot.content())

    def adopt(self, old: int, step: int) -> None:
        """What was the local state of step `old` is that of `step` now, and in place."""
        self.restore(old)
        self.publish(step, self.capture())

    def copy_to_partner(self, step: int) -> None:
        """Who keeps a copy may be new, and `step` is what a loss before the next one would go back to."""
        slot = self.slot(step)
        if self.partner.there and slot.step == step:
            self.partner.keep(step % 2, step, slot.content())

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        out = self._protected.buffers() + self._protected.errors()
        if self.carry_grads:
            for path, p in self._protected.parameters():
                if p.grad is not None:
                    out += _parts(f"grad:{path}", p.grad)
        return out

    def restore(self, step: int) -> None:
        """Put this rank's local state back to that of `step`."""
        self.refresh()
        slot = self.slot(step)
        if slot.step != step:
            raise StateError(f"the local state of step {step} is not here (slots hold {self.steps()})")
        small, places, start = slot.read()
        apart = ("grad:", ERROR)
        shapes = {p.path: (dtype_of(p.dtype), tuple(p.shape)) for p in places if not p.path.startswith(apart)}
        mine = self._protected.shape_buffers(shapes)
        params = dict(self._protected.parameters())
        errors: dict[str, torch.Tensor] = {}
        grads: dict[str, dict[str, torch.Tensor]] = {}
        for place in places:
            if place.path.startswith("grad:"):
                path, _, part = place.path.removeprefix("grad:").partition("#")
                t = torch.empty(place.shape, dtype=dtype_of(place.dtype), device=params[path].device)
                _read_tensor(slot.map, start + place.offset, t)
                grads.setdefault(path, {})[part] = t
            elif place.path in mine:
                _read_tensor(slot.map, start + place.offset, mine[place.path])
            elif place.path.startswith(ERROR):
                errors[place.path] = torch.empty(place.shape, dtype=dtype_of(place.dtype))
                _read_tensor(slot.map, start + place.offset, errors[place.path])
        for path, parts in grads.items():
            params[path].grad = _whole(parts, params[path])
        self._protected.put_errors(errors)
        self._restore_objects(small.objects)
        data = (small.python, small.numpy, small.torch, small.device)
        for stream, state in zip(self._streams, data, strict=True):
            stream.write(state)

    def _restore_objects(self, blob: bytes) -> None:
        if not blob:
            return
        values = msgspec.msgpack.decode(blob)
        own: dict[str, torch.Tensor] = {}
        for name, obj in self._protected.local.items():
            own |= own_tensors(name, obj)
        tensors = [_put(own.get(path), dtype_of(dtype), shape, data) for path, dtype, shape, data in values["tensors"]]
        for name, obj in self._protected.local.items():
            if name in values["local"]:
                take_over(obj, values["local"][name], tensors)
        for cursor, position in zip(self.cursors, values["cursors"], strict=False):
            cursor.rewind(position)


def _parts(name: str, grad: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A gradient as it can be written: a sparse one is made of two tensors, and of whether it is in order."""
    if grad.layout is not torch.sparse_coo:
        return [(name, grad)]
    ordered = torch.tensor(grad.is_coalesced())
    return [(f"{name}#indices", grad._indices()), (f"{name}#values", grad._values()), (f"{name}#ordered", ordered)]


def _whole(parts: dict[str, torch.Tensor], p: torch.Tensor) -> torch.Tensor:
    """The gradient of `p` that was taken apart."""
    if "" in parts:
        return parts[""]
    return torch.sparse_coo_tensor(
        parts["indices"], parts["values"], p.shape, is_coalesced=bool(parts["ordered"]), check_invariants=False
    )


def _put(own: torch.Tensor | None, dtype: torch.dtype, shape: list[int], data: bytes) -> torch.Tensor:
    """Into our own tensor where it fits, else a new one."""
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    if own is None or own.dtype != dtype or list(own.shape) != shape:
        return flat.reshape(shape)
    with torch.no_grad():
        own.detach().copy_(flat.reshape(shape))
    return own


def same(a: Small, b: Small) -> bool:
    return a == b


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


def _view(m: mmap.mmap, at: int, t: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(m, dtype=t.dtype, count=t.numel(), offset=at).view(t.shape)


def _read_tensor(m: mmap.mmap, at: int, t: torch.Tensor) -> None:
    if t.numel():
        with torch.no_grad():
            t.detach().copy_(_view(m, at, t))
