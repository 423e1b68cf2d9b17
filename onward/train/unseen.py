"""What a script carries from step to step without having protected it, as far as that can be seen: a warning, once.

A redo cannot put it back, and a replacement has none of it, so the result would silently be another one than without a
fault. Looked at are the names around the loop: torch's own objects that move with the steps, streams of random numbers,
iterators, and tensors that a step reads before it gives them a new value.
"""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from onward.log import get_logger
from onward.train.protected import Protected

log = get_logger("onward.train")
_OWN = ("onward.", "torch.")
_LOOKS = 3  # the first, and then when two steps have been run
_TENSORS = (torch.Tensor, tuple, list)
_WRAPPERS = {
    "enumerate": "counts a step that is run again once more, and from 0 in a replacement: use step.index",
    "zip": "gives a step that is run again the next item, and a replacement the first: take items inside the block, "
    "from run.batches(...)",
}


class Unseen:
    """One of each rank; `look` is called at the top of its loop, before each of its first steps."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._looks = 0
        self._before: dict[str, tuple[Any, Any]] = {}  # by name: what it stood for, and how that stood

    def look(self, frame: FrameType | None) -> list[str]:
        """What is to be said. `frame` is that which asks for the next step, or one below it."""
        try:
            return self._look(frame)
        except Exception as e:  # a script's objects may do anything when they are looked at; that is not its concern
            log.info("what the script carries from step to step cannot be looked at: %r", e)
            self._looks = _LOOKS
            return []

    def _look(self, frame: FrameType | None) -> list[str]:
        self._looks += 1
        if self._looks > _LOOKS or self._protected.has_own_objects:  # what such an object holds cannot be seen
            return []
        frames = [f for f in _upwards(frame) if not f.f_globals.get("__name__", "").startswith(_OWN)]
        if self._looks == 1:
            found = self._names(frames).items()
            self._before = {name: (value, mark) for name, value in found if (mark := _mark(value)) is not None}
            return [said for f in frames for said in _wrapped(f)]
        if self._looks < _LOOKS:
            return []
        now = {name: value for name, value in self._names(frames).items() if name in self._before}
        moved = [_said(name, value) for name, value in now.items() if self._moved(name, value, frames)]
        self._before = {}
        return moved

    def _moved(self, name: str, value: Any, frames: list[FrameType]) -> bool:
        was, mark = self._before[name]
        if type(value) is not type(was) or (value is was and _mark(value) == mark):
            return False
        return not isinstance(was, _TENSORS) or any(_reads_first(f, name) for f in frames)

    def _names(self, frames: list[FrameType]) -> dict[str, Any]:
        """Around the loop, and what the object that runs it holds; without what is protected."""
        found: dict[str, Any] = {}
        for f in reversed(frames):
            found |= f.f_globals if f.f_globals.get("__name__") == "__main__" else {}
            found |= f.f_locals
        found |= {f"self.{name}": value for name, value in getattr(found.get("self"), "__dict__", {}).items()}
        known = self._protected.known()
        for loader in [v for v in found.values() if isinstance(v, DataLoader)]:  # its own concern
            known |= {id(loader.generator), id(getattr(loader.sampler, "generator", None)), id(loader._iterator)}
        return {name: value for name, value in found.items() if id(value) not in known}


def _said(name: str, value: Any) -> str:
    if isinstance(value, _BaseDataLoaderIter):
        return (
            f"{name} goes on from step to step: a step that is run again gets other items from it. Take them from "
            "run.batches(loader)"
        )
    cure = "put it into a dict that is protected" if isinstance(value, _TENSORS) else "give it to run.protect"
    return (
        f"{name} (a {type(value).__name__}) changes from step to step and is not protected: a step that is run again "
        "finds it changed and a replacement does not have it, so the result is not that of a run without faults; "
        f"{cure}, as local={{...}} where it differs from rank to rank"
    )


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _mark(value: Any) -> Any:
    """How it stands; None for what is of no interest."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.nn.Parameter):
        return None
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, tuple | list):
        tensors = 0 < len(value) <= 8 and all(isinstance(v, torch.Tensor) and not v.is_inference() for v in value)
        return [(id(v), v._version) for v in value] if tensors else None
    if isinstance(value, LRScheduler):
        return value.last_epoch
    if isinstance(value, torch.amp.GradScaler):
        return value.state_dict() or None
    if isinstance(value, AveragedModel):
        return int(value.n_averaged)
    if isinstance(value, _BaseDataLoaderIter):
        return value._num_yielded
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, random.Random):
        return value.getstate()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return repr(value.get_state(legacy=False))
    return None


def _reads_first(frame: FrameType, name: str) -> bool:
    """Whether what stands behind the top of the loop reads `name` before it writes it."""
    for at in dis.get_instructions(frame.f_code):
        if at.offset > frame.f_lasti and at.argval == name and at.opname.startswith(("LOAD_", "STORE_")):
            return at.opname.startswith("LOAD_")
    return False


def _wrapped(frame: FrameType) -> Iterator[str]:
    """Steps that come by way of something that counts them."""
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
        return
    line = 0
    for at in dis.get_instructions(frame.f_code):
        line = getattr(at, "line_number", None) or (at.starts_line if isinstance(at.starts_line, int) else 0) or line
        if line == frame.f_lineno and at.opname.startswith("LOAD_") and at.argval in _WRAPPERS:
            yield f"{at.argval}(...) around the steps {_WRAPPERS[at.argval]} ({frame.f_code.co_filename}:{line})"
