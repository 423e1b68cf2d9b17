"""The shared state as one safetensors file, laid out so that tensors are copied straight to where they stand in it.

The library of that name builds a file from tensors by copying them first; here the copy *is* the file, in a node's
memory. What it holds besides tensors (the nested values of a state dict) goes into the header's metadata, so the file
alone is enough to load from, and any reader of safetensors can open it.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any

import msgspec
import torch

from onward.errors import StateError
from onward.train.manifest import Manifest
from onward.train.values import dtype_of

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_ALIGN = 64  # of the data, so that a tensor can be looked at where it stands
_KEY = "onward"


class Layout:
    """Where everything stands: the header's bytes, and for each tensor of the manifest its offset in the file."""

    def __init__(self, manifest: Manifest) -> None:
        unknown = sorted({t.dtype for t in manifest.tensors if t.dtype not in _NAMES})
        if unknown:
            raise StateError(f"tensors of type {', '.join(unknown)} cannot be written to a checkpoint")
        # Large elements first: everything is then aligned, and there are no holes, which the format forbids.
        order = sorted(range(len(manifest.tensors)), key=lambda i: -dtype_of(manifest.tensors[i].dtype).itemsize)
        entries: dict[str, Any] = {_KEY_METADATA: {_KEY: _pack(manifest)}}
        offsets, at = [0] * len(order), 0
        for i in order:
            info = manifest.tensors[i]
            name = info.path if info.path not in entries else f"{info.path}#{i}"
            entries[name] = {
                "dtype": _NAMES[info.dtype],
                "shape": list(info.shape),
                "data_offsets": [at, at + info.nbytes],
            }
            offsets[i] = at
            at += info.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % _ALIGN)
        self.header = struct.pack("<Q", len(text)) + text
        self.offsets = [len(self.header) + o for o in offsets]
        self.size = len(self.header) + at


_KEY_METADATA = "__metadata__"


def _pack(manifest: Manifest) -> str:
    plain = [msgspec.structs.replace(t, address=0) for t in manifest.tensors]
    bare = msgspec.structs.replace(manifest, tensors=plain, pid=0, boot="")
    return base64.b64encode(msgspec.msgpack.encode(bare)).decode()


def fill(into: Any, at: int, layout: Layout, tensors: list[torch.Tensor]) -> None:
    """Write the file into the writable buffer `into`, from `at` on."""
    into[at : at + len(layout.header)] = layout.header
    whole = torch.frombuffer(into, dtype=torch.uint8)
    with torch.no_grad():
        for t, offset in zip(tensors, layout.offsets, strict=True):
            size = t.numel() * t.element_size()
            if size:
                begin = at + offset
                whole[begin : begin + size].copy_(t.detach().reshape(-1).view(torch.uint8))


def open_file(buffer: Any, at: int) -> tuple[Manifest, list[torch.Tensor]]:
    """The manifest, and each of its tensors as it stands in `buffer`, which must be writable for torch's peace."""
    whole = torch.frombuffer(buffer, dtype=torch.uint8)
    try:
        (size,) = struct.unpack_from("<Q", buffer, at)
        if size > len(whole) - at - 8:
            raise ValueError("its header is longer than the file")
        entries = json.loads(bytes(buffer[at + 8 : at + 8 + size]))
        packed = base64.b64decode(entries[_KEY_METADATA][_KEY], validate=True)
        manifest = msgspec.msgpack.decode(packed, type=Manifest)
    except (struct.error, ValueError, KeyError, TypeError, binascii.Error, msgspec.MsgspecError) as e:
        raise StateError(f"this is no state file of onward ({e})") from e
    layout = Layout(manifest)
    if layout.size > len(whole) - at:
        raise StateError("the state file is shorter than its header says")
    tensors = []
    for info, offset in zip(manifest.tensors, layout.offsets, strict=True):
        begin = at + offset
        flat = whole[begin : begin + info.nbytes]
        tensors.append(flat.view(dtype_of(info.dtype)).reshape(info.shape))
    return manifest, tensors
