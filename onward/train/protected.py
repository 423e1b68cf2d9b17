"""What a replacement must be given: the shared state behind `run.protect(...)`.

Parameters, optimizer state and anything with `state_dict`/`load_state_dict` are *shared*: every data-parallel replica
holds the same, so a copy can come from any of them. Module buffers are *local* (BatchNorm statistics differ by rank)
and live in `local`. State is tensors, numbers, strings, bytes, None, and lists and dicts of them; anything else is
refused with its path. No pickle.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec
import psutil
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from onward.errors import StateError, UsageError

_version, _grad = attrgetter("_version"), attrgetter("grad")
_SCALARS = (bool, int, float, str, bytes, type(None))


_TENSOR = "\x00onward.tensor"  # no user's list begins with this


class TensorRef(msgspec.Struct, frozen=True, array_like=True, tag=_TENSOR):
    """Stands for tensor number `index` where a state dict had a tensor."""

    index: int


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a receiver must know before the bytes come."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    on_cpu: bool
    address: int = 0  # in the source's memory, for a direct read on the same machine

    @property
    def nbytes(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count * int(dtype_of(self.dtype).itemsize)


class Manifest(msgspec.Struct, frozen=True):
    """A complete description of one rank's shared state, without the tensor bytes."""

    step: int
    tensors: list[TensorInfo]
    values: bytes  # msgpack of name -> nested state with TensorRef in place of tensors
    pid: int = 0
    boot: str = ""
    last_sync: int = 0

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"unknown tensor type {name!r} in a peer's state")
    return found


BUFFER = "buffer:"  # in a manifest, before the path of a module's buffer


class Protected:
    """The objects given to `run.protect`, and how to read, copy and restore them."""

    def __init__(self) -> None:
        self.adopting = False  # a source's buffers are taken over too
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.objects: dict[str, Any] = {}  # anything else with state_dict / load_state_dict, or a container
        self.local: dict[str, Any] = {}
        self._undo: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._undo_values: dict[str, Any] = {}
        self._undo_fresh: list[tuple[Optimizer, Any]] = []
        self._begin_objects: dict[str, Any] = {}
        self._begin_scalers: list[tuple[Any, dict[int, Any]]] = []
        self._buffers: list[tuple[str, torch.Tensor]] | None = None
        self._flat: list[torch.Tensor] = []
        self._buffer_homes: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._begin_groups: dict[str, list[dict[str, Any]]] = {}

    def add(self, name: str, value: Any, local: bool = False) -> None:
        problem = _problem(name, value)
        if problem:
            raise UsageError(problem)
        taken = {**self.modules, **self.optimizers, **self.objects, **self.local}
        if name in taken and taken[name] is not value:
            raise UsageError(f"protect: {name!r} is protected already; give the second object another name")
        if local:
            self.local[name] = value
        elif isinstance(value, nn.Module):
            self.modules[name] = value
            self._buffers = None
        elif isinstance(value, Optimizer):
            self.optimizers[name] = value
        else:
            self.objects[name] = value

    # ------------------------------------------------------------------------------------- walking

    def wrappers(self) -> Iterator[DistributedDataParallel]:
        for module in self.modules.values():
            for m in module.modules():
                if isinstance(m, DistributedDataParallel):
                    yield m

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        out = []
        for name, module in self.modules.items():
            for path, p in module.named_parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    out.append((f"{name}.{path}", p))
        for name, opt in self.optimizers.items():
            for g, group in enumerate(opt.param_groups):
                for i, p in enumerate(group["params"]):
                    if id(p) not in seen:
                        seen.add(id(p))
                        out.append((f"{name}.{g}.{i}", p))
        return out

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Every module buffer. Walking the modules is slow, so the last walk is kept while it still holds."""
        if self._buffers is None or any(home.get(key) is not b for home, key, b in self._buffer_homes):
            self._buffers, self._buffer_homes = [], []
            seen: set[int] = set()
            for name, module in self.modules.items():
                for path, m in module.named_modules():
                    for key, b in m._buffers.items():
                        if b is not None and id(b) not in seen:
                            seen.add(id(b))
                            self._buffers.append((".".join(filter(None, (name, path, key))), b))
                            self._buffer_homes.append((m._buffers, key, b))
        return self._buffers

    def tensors(self) -> list[torch.Tensor]:
        """Every shared tensor that lives in a module or an optimizer."""
        out = [p for _, p in self.parameters()]
        for opt in self.optimizers.values():
            for state in opt.state.values():
                out.extend(v for v in state.values() if isinstance(v, torch.Tensor))
        out.extend(v for v in self.objects.values() if isinstance(v, torch.Tensor))
        return out

    def look_again(self) -> None:
        """Parameters may have been added since the last step. Asked once a step; `versions` is asked more often."""
        named = self._parameters_cached()
        if len(self._flat) != len(named) or (named and self._flat[0] is not named[0][1]):
            self._flat = [p for _, p in named]

    def versions(self) -> int:
        """Changes whenever a parameter is written in place."""
        return sum(map(_version, self._flat))

    def has_grads(self) -> bool:
        return any(g is not None for g in map(_grad, self._flat))

    def _parameters_cached(self) -> list[tuple[str, torch.Tensor]]:
        cached = getattr(self, "_cache", None)
        key = (len(self.modules), len(self.optimizers), sum(len(o.param_groups) for o in self.optimizers.values()))
        if cached is None or cached[0] != key:
            cached = (key, self.parameters())
            self._cache = cached
        result: list[tuple[str, torch.Tensor]] = cached[1]
        return result

    # ------------------------------------------------------------------------------------- redo

    def begin(self) -> None:
        """Remember what is small and can change before the update: hyper-parameters, schedulers, scalers."""
        self._begin_groups = {
            name: [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
            for name, opt in self.optimizers.items()
        }
        self._begin_objects = {name: _snapshot(obj) for name, obj in self.objects.items()}
        self._begin_scalers = [(obj, _scaler_stages(obj)) for obj in self.objects.values() if hasattr(obj, _STAGES)]

    def check_small(self, at_begin: bool) -> int:
        """A short name for hyper-parameters and plain objects, as they are or as the open block had found them."""
        if at_begin:
            groups, objects = self._begin_groups, self._begin_objects
        else:
            groups = {
                name: [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
                for name, opt in self.optimizers.items()
            }
            objects = {name: _state_of(obj) for name, obj in self.objects.items()}
        return zlib.crc32(repr((groups, objects)).encode())

    def rewind_scalers(self, received: bool) -> None:
        """What a GradScaler has done for an optimizer since its last update is not in its state_dict.

        A redo that finds it done would step with gradients that are not unscaled.
        """
        for obj in self.objects.values():
            if hasattr(obj, _STAGES):
                getattr(obj, _STAGES).clear()
        for obj, stages in self._begin_scalers if not received else ():
            getattr(obj, _STAGES).update(stages)

    def rewind_small(self) -> None:
        for name, groups in self._begin_groups.items():
            for group, saved in zip(self.optimizers[name].param_groups, groups, strict=False):
                group.update(saved)
        for name, saved in self._begin_objects.items():
            _restore(self.objects[name], saved)

    def save_undo(self) -> None:
        """Copy all shared tensors aside, so that an update can be taken back."""
        current = self.tensors()
        known = {id(t): (t, c) for t, c in self._undo}
        pairs = []
        for t in current:
            pair = known.get(id(t))
            if pair is None or pair[0] is not t:
                pair = (t, torch.empty_like(t, device="cpu", requires_grad=False))
            pairs.append(pair)
        self._undo = pairs
        with torch.no_grad():
            for t, c in pairs:
                c.copy_(t.detach())
        self._undo_values = {
            f"{name}:{id(p)}": {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)}
            for name, opt in self.optimizers.items()
            for p, state in opt.state.items()
        }
        self._undo_fresh = [(opt, set(map(id, opt.state))) for opt in self.optimizers.values()]

    def undo(self) -> None:
        """Put back what `save_undo` had copied; state that did not exist then is dropped."""
        with torch.no_grad():
            for t, c in self._undo:
                t.detach().copy_(c)
        for opt, known in self._undo_fresh:
            for p in [p for p in opt.state if id(p) not in known]:
                del opt.state[p]
        for name, opt in self.optimizers.items():
            for p, state in opt.state.items():
                state.update(self._undo_values.get(f"{name}:{id(p)}", {}))
        self.rewind_small()

    def drop_undo_if_large(self) -> None:
        """Give the copies' memory back where it is scarce; else keep the pages warm for the next careful step."""
        size = sum(c.numel() * c.element_size() for _, c in self._undo)
        if size > psutil.virtual_memory().available / 50:
            self._undo = []

    def clear_grads(self) -> None:
        for _, p in self._parameters_cached():
            p.grad = None

    # ------------------------------------------------------------------------------------- moving

    def describe(self, step: int, last_sync: int, buffers: bool = False) -> tuple[Manifest, list[torch.Tensor]]:
        """The manifest of what this rank holds, and the tensors it speaks of, in order."""
        tensors: list[torch.Tensor] = []
        infos: list[TensorInfo] = []

        def take(path: str, t: torch.Tensor) -> TensorRef:
            flat = t.detach()
            if not flat.is_contiguous():
                flat = flat.contiguous()
            tensors.append(flat)
            dtype = str(t.dtype).removeprefix("torch.")
            address = flat.data_ptr() if flat.device.type == "cpu" else 0
            infos.append(TensorInfo(path, dtype, tuple(t.shape), t.device.type == "cpu", address))
            return TensorRef(len(tensors) - 1)

        values: dict[str, Any] = {"parameters": {path: take(path, p) for path, p in self.parameters()}}
        if buffers:  # local state, but better than none for a rank that joins with no past
            values["buffers"] = [take(f"{BUFFER}{path}", b) for path, b in self.buffers()]
        for name, opt in self.optimizers.items():
            values[f"optimizer {name}"] = _describe_optimizer(name, opt, take)
        for name, obj in self.objects.items():
            values[f"object {name}"] = _plain(name, _state_of(obj), take)
        manifest = Manifest(step=step, tensors=infos, values=msgspec.msgpack.encode(values), last_sync=last_sync)
        return manifest, tensors

    def targets(self, manifest: Manifest) -> list[torch.Tensor]:
        """Where the tensors of a peer's manifest go, in its order: our own where we have them, else new ones."""
        mine = dict(self.parameters())
        if self.adopting:  # else buffers are local state: each rank has its own
            mine |= {f"{BUFFER}{path}": b for path, b in self.buffers()}
        out = []
        for info in manifest.tensors:
            t = mine.get(info.path)
            if t is None:
                t = self._optimizer_tensor(info)
            if t is None:
                out.append(torch.empty(info.shape, dtype=dtype_of(info.dtype)))
                continue
            if tuple(t.shape) != tuple(info.shape) or str(t.dtype) != f"torch.{info.dtype}":
                raise StateError(
                    f"protected tensor {info.path} is {info.dtype}{list(info.shape)} at the source and "
                    f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} here; the script built another model"
                )
            out.append(t)
        return out

    def _optimizer_tensor(self, info: TensorInfo) -> torch.Tensor | None:
        name, _, rest = info.path.partition("/")
        opt = self.optimizers.get(name)
        if opt is None or not rest:
            return None
        where, _, key = rest.partition("/")
        g, _, i = where.partition(".")
        try:
            p = opt.param_groups[int(g)]["params"][int(i)]
        except (IndexError, ValueError):
            return None
        t = opt.state[p].get(key)
        if isinstance(t, torch.Tensor) and tuple(t.shape) == tuple(info.shape):
            return t
        device = torch.device("cpu") if info.on_cpu else p.device
        return torch.empty(info.shape, dtype=dtype_of(info.dtype), device=device)

    def accept(self, manifest: Manifest, tensors: list[torch.Tensor]) -> None:
        """Take over a peer's state; `tensors` are those of `targets`, now filled."""
        values = msgspec.msgpack.decode(manifest.values)
        missing = {path for path, _ in self.parameters()} ^ set(values["parameters"])
        if missing:
            raise StateError(f"the source and this rank protect different parameters: {sorted(missing)[:5]}")
        for name, opt in self.optimizers.items():
            _accept_optimizer(opt, values[f"optimizer {name}"], tensors)
        for name, obj in self.objects.items():
            _restore(obj, _rebuild(values[f"object {name}"], tensors, _state_of(obj)))


# ------------------------------------------------------------------------------------------- optimizers


def _describe_optimizer(name: str, opt: Optimizer, take: Any) -> dict[str, Any]:
    groups = [{k: _plain(k, v, take) for k, v in g.items() if k != "params"} for g in opt.param_groups]
    state: dict[str, Any] = {}
    for g, group in enumerate(opt.param_groups):
        for i, p in enumerate(group["params"]):
            if p in opt.state:
                where = f"{g}.{i}"
                state[where] = {
                    k: take(f"{name}/{where}/{k}", v) if isinstance(v, torch.Tensor) else _plain(k, v, take)
                    for k, v in opt.state[p].items()
                }
    return {"groups": groups, "state": state}


def _accept_optimizer(opt: Optimizer, values: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    for group, saved in zip(opt.param_groups, values["groups"], strict=True):
        for k, v in saved.items():
            group[k] = _rebuild(v, tensors, group.get(k))
    for g, group in enumerate(opt.param_groups):
        for i, p in enumerate(group["params"]):
            saved_state = values["state"].get(f"{g}.{i}")
            if saved_state is None:
                opt.state.pop(p, None)
                continue
            own = opt.state[p]
            for k in [k for k in own if k not in saved_state]:
                del own[k]
            for k, v in saved_state.items():
                own[k] = _rebuild(v, tensors, own.get(k))


# ------------------------------------------------------------------------------------------- plain values


def _problem(name: str, value: Any) -> str:
    if isinstance(value, nn.Module | Optimizer | torch.Tensor):
        return ""
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        try:
            _plain(name, value.state_dict(), lambda path, t: TensorRef(0))
        except StateError as e:
            return f"protect: {e}"
        return ""
    if isinstance(value, dict | list):
        try:
            _plain(name, value, lambda path, t: TensorRef(0))
        except StateError as e:
            return f"protect: {e}"
        return ""
    if isinstance(value, _SCALARS):
        return (
            f"protect: {name} is a plain {type(value).__name__}, which cannot be put back in place; "
            f"keep it in a dict ({name}={{'value': ...}}) or in an object with state_dict and load_state_dict"
        )
    return (
        f"protect: {name} ({type(value).__name__}) has no state that could be restored; it needs state_dict and "
        "load_state_dict, or must be a tensor, a dict or a list"
    )


_STAGES = "_per_optimizer_states"  # of torch's GradScaler


def _scaler_stages(scaler: Any) -> dict[int, Any]:
    stages = getattr(scaler, _STAGES)
    found = "found_inf_per_device"
    return {optimizer: {**stage, found: dict(stage[found])} for optimizer, stage in stages.items()}


def _state_of(obj: Any) -> Any:
    return obj if isinstance(obj, torch.Tensor | dict | list) else obj.state_dict()


def _plain(path: str, value: Any, take: Any) -> Any:
    """`value` with tensors taken out, made of what MessagePack knows; StateError names what is not."""
    if isinstance(value, torch.Tensor):
        return take(path, value)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        for k in value:
            if not isinstance(k, str | int | float | bool):
                raise StateError(f"{path} has a key of type {type(k).__name__}; only strings and numbers are protected")
        return {k: _plain(f"{path}.{k}", v, take) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{path}[{i}]", v, take) for i, v in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise StateError(
        f"{path} is a {type(value).__name__}; protected state is tensors, numbers, strings, bytes, and lists and "
        "dicts of them"
    )


def _rebuild(value: Any, tensors: list[torch.Tensor], template: Any) -> Any:
    """The value that `_plain` had taken apart, in the container types of `template` where they fit."""
    if isinstance(value, list) and len(value) == 2 and value[0] == _TENSOR:
        return tensors[value[1]]
    if isinstance(value, dict):
        old = template if isinstance(template, Mapping) else {}
        built: Any = {k: _rebuild(v, tensors, old.get(k)) for k, v in value.items()}
        if isinstance(template, Mapping) and type(template) is not dict:
            try:
                return type(template)(built)  # type: ignore[call-arg]
            except TypeError:
                return built
        return built
    if isinstance(value, list):
        items = template if isinstance(template, list | tuple) and len(template) == len(value) else [None] * len(value)
        out = [_rebuild(v, tensors, o) for v, o in zip(value, items, strict=True)]
        return tuple(out) if isinstance(template, tuple) else out
    return value


def _snapshot(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        return obj.detach().clone()
    return copy.deepcopy(_state_of(obj))


def _restore(obj: Any, saved: Any) -> None:
    if isinstance(obj, torch.Tensor):
        with torch.no_grad():
            obj.detach().copy_(saved)
    elif isinstance(obj, dict):
        obj.clear()
        obj.update(copy.deepcopy(saved))
    elif isinstance(obj, list):
        obj[:] = copy.deepcopy(saved)
    else:
        obj.load_state_dict(copy.deepcopy(saved))
