"""Moving shared state from a rank that has it to one that needs it.

Not over the process group: a transfer must be interruptible, must not care about the backend, and may happen while
groups are being built. On the same machine the receiver reads the source's memory directly (one copy, no socket);
otherwise, or where the kernel forbids that, bytes flow over a socket straight between tensors.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import torch

from onward.errors import StateError, WireError
from onward.train.manifest import Manifest
from onward.train.protected import Protected
from onward.train.streams import memory_of
from onward.wire.frames import MAX_FRAME, MAX_HELLO, proof, send_at_once
from onward.wire.identity import Identity
from onward.wire.kernel import boot_id

_CHUNK = 4 << 20
_PART = 16 << 20  # of a tensor, read by one thread at a time
_READERS = 4
_libc = ctypes.CDLL(None, use_errno=True)


class Want(msgspec.Struct, frozen=True):
    """A receiver's question."""

    generation: int


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Server:
    """Serves this rank's state to those who need it, while the main thread stands at the fence."""

    def __init__(self, address: str, identity: Identity) -> None:
        self._identity = identity
        self._sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._sock.bind((address, 0))
        self._sock.listen(64)
        self.address = f"{address}|{self._sock.getsockname()[1]}"
        _allow_reads()

    def serve(
        self,
        generation: int,
        manifest: Manifest,
        tensors: list[torch.Tensor],
        count: int,
        interrupted: Callable[[], bool],
    ) -> None:
        """Answer `count` receivers of `generation`, then return. StateError when interrupted."""
        manifest = msgspec.structs.replace(manifest, pid=os.getpid(), boot=boot_id())
        done: list[bool] = []
        self._sock.settimeout(0.002)  # also how soon the end of the last answer is seen
        while len(done) < count:
            if interrupted():
                raise StateError("interrupted while serving state")
            try:
                peer, _ = self._sock.accept()
            except TimeoutError:
                continue
            answer = (peer, generation, manifest, tensors, done, interrupted)
            threading.Thread(target=self._answer, args=answer, daemon=True).start()

    def _answer(
        self,
        peer: socket.socket,
        generation: int,
        manifest: Manifest,
        tensors: list[torch.Tensor],
        done: list[bool],
        interrupted: Callable[[], bool],
    ) -> None:
        try:
            peer.settimeout(1.0)
            with self._identity.accepted(peer) as peer:
                channel = Channel(peer, interrupted)
                nonce = os.urandom(16)
                channel.send(nonce)
                if channel.receive(MAX_HELLO) != proof(self._identity.token, nonce):
                    return
                want = msgspec.msgpack.decode(channel.receive(MAX_HELLO), type=Want)
                if want.generation != generation:
                    return
                channel.send(msgspec.msgpack.encode(manifest))
                if msgspec.msgpack.decode(channel.receive(MAX_HELLO), type=str) == "stream":
                    for t in tensors:
                        host = t if t.device.type == "cpu" else t.cpu()
                        channel.send_raw(memory_of(host))
                if msgspec.msgpack.decode(channel.receive(MAX_HELLO), type=str) == "done":
                    done.append(True)
        except (WireError, OSError, msgspec.MsgspecError):
            return

    def close(self) -> None:
        self._sock.close()


def fetch(
    source: str,
    identity: Identity,
    generation: int,
    protected: Protected,
    interrupted: Callable[[], bool],
    wait_s: float,
    behind: bool = False,
) -> Manifest:
    """Fill `protected` with the state that `source` serves for `generation`."""
    host, _, port = source.rpartition("|")
    deadline = time.monotonic() + wait_s
    opened = socket.create_connection((host, int(port)), timeout=wait_s)
    with identity.connected(opened, host) as sock:
        sock.settimeout(1.0)
        channel = Channel(sock, interrupted, deadline)
        nonce = channel.receive(MAX_HELLO)
        channel.send(proof(identity.token, nonce))
        channel.send(msgspec.msgpack.encode(Want(generation)))
        manifest = msgspec.msgpack.decode(channel.receive(MAX_FRAME), type=Manifest)
        targets = protected.targets(manifest)
        host_side = [host_twin(t.detach()) for t in targets]
        if _read_directly(manifest, host_side):
            channel.send(msgspec.msgpack.encode("direct"))
        else:
            channel.send(msgspec.msgpack.encode("stream"))
            for t in host_side:
                channel.receive_raw(memory_of(t))
        with torch.no_grad():
            for t, h in zip(targets, host_side, strict=True):
                if t.data_ptr() != h.data_ptr():
                    t.detach().copy_(h)
        protected.accept(manifest, targets, behind)
        channel.send(msgspec.msgpack.encode("done"))
    return manifest


class Channel:
    """Frames and raw bytes on a socket, giving up when interrupted or late."""

    def __init__(self, sock: socket.socket, interrupted: Callable[[], bool], deadline: float | None = None) -> None:
        send_at_once(sock)
        self._sock = sock
        self._interrupted = interrupted
        self._deadline = deadline

    def _check(self) -> None:
        if self._interrupted():
            raise WireError("interrupted")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise WireError("the peer is too slow")

    def send(self, body: bytes) -> None:
        self.send_raw(memoryview(len(body).to_bytes(4, "big") + body))

    def send_raw(self, view: memoryview) -> None:
        while len(view):
            self._check()
            try:
                view = view[self._sock.send(view[:_CHUNK]) :]
            except TimeoutError:
                continue

    def receive_raw(self, view: memoryview) -> None:
        while len(view):
            self._check()
            try:
                n = self._sock.recv_into(view[:_CHUNK])
            except TimeoutError:
                continue
            if n == 0:
                raise WireError("the peer closed the connection")
            view = view[n:]

    def receive(self, limit: int) -> bytes:
        head = bytearray(4)
        self.receive_raw(memoryview(head))
        size = int.from_bytes(head, "big")
        if size > limit:
            raise WireError(f"frame of {size} bytes is over the limit of {limit}")
        body = bytearray(size)
        self.receive_raw(memoryview(body))
        return bytes(body)


def host_twin(t: torch.Tensor) -> torch.Tensor:
    """`t` itself where bytes can be put straight into it, else a tensor to copy from afterwards."""
    if t.device.type == "cpu" and t.is_contiguous():
        return t
    return torch.empty(t.shape, dtype=t.dtype)


def _allow_reads() -> None:
    pr_set_ptracer, any_process = 0x59616D61, ctypes.c_ulong(-1)
    _libc.prctl(pr_set_ptracer, any_process, 0, 0, 0)  # an error only means that there is no such restriction


def _read_directly(manifest: Manifest, tensors: list[torch.Tensor]) -> bool:
    """Copy the source's memory into `tensors`; False when it must be streamed instead."""
    if not manifest.boot or manifest.boot != boot_id():
        return False
    parts = []
    for info, t in zip(manifest.tensors, tensors, strict=True):
        size = t.numel() * t.element_size()
        if size and not info.address:
            return False
        parts += [(t.data_ptr() + at, info.address + at, min(_PART, size - at)) for at in range(0, size, _PART)]
    # The others stand at the fence, so there are cores for it, and one alone does not make full use of the memory.
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1), "onward-read") as pool:
        return all(pool.map(lambda part: _read_part(manifest.pid, *part), parts))


def _read_part(pid: int, to: int, address: int, size: int) -> bool:
    done = 0
    while done < size:
        n = _process_vm_readv(pid, _Iovec(to + done, size - done), _Iovec(address + done, size - done))
        if n <= 0:
            return False
        done += n
    return True


def _process_vm_readv(pid: int, local: _Iovec, remote: _Iovec) -> int:
    call: Any = _libc.process_vm_readv
    call.restype = ctypes.c_ssize_t
    return int(call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
