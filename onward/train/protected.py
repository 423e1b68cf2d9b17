"""What a replacement must be given: the shared state behind `run.protect(...)`.

Parameters, optimizer state and anything with `state_dict`/`load_state_dict` are *shared*: every data-parallel replica
holds the same, so a copy can come from any of them. Module buffers are *local* (BatchNorm statistics differ by rank)
and live in `local`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from onward.errors import StateError, UsageError
from onward.train import moments, optimizers, values, wrappers
from onward.train.buckets import Buckets, Settled
from onward.train.manifest import Manifest, TensorInfo
from onward.train.moments import AT_COMMIT, Moment
from onward.train.values import SMALL_BYTES, TensorRef, dtype_of, own_tensors, plain, state_of, take_over
from onward.wire import memory

_version, _grad = attrgetter("_version"), attrgetter("grad")


BUFFER = "buffer:"  # in a manifest, before the path of a module's buffer
ERROR = "error:"  # before what a communication hook has left out


Seen = list[tuple[torch.Tensor, int, torch.Tensor | None]]  # a buffer, its version, its numbers


class Protected:
    """The objects given to `run.protect`, and how to read, copy and restore them."""

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self.adopting = False  # a source's buffers are taken over too
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.objects: dict[str, Any] = {}  # anything else with state_dict / load_state_dict, or a container
        self.local: dict[str, Any] = {}
        self._power_sgd: list[wrappers.PowerSGD] = []
        self._undo: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._undo_kept: list[optimizers.Kept] = []
        self._at_begin = Moment({}, {})  # of the last block
        self._stages = moments.Stages({})  # likewise
        self._at_commit: tuple[int, Moment] | None = None  # of which step the state then was
        self._at_top: tuple[int, Moment] | None = None  # there, where this rank is not yet
        self.top = -1  # the step at the top of whose block this rank has been: the code before it has been run
        self._buffers: list[tuple[str, torch.Tensor]] | None = None
        self._flat: list[torch.Tensor] = []
        self._homes: dict[str, tuple[dict[str, Any], str, torch.Tensor | None]] = {}  # where buffers stand, by path
        self.withheld = ""  # what no other process can be given, as the open block had found it
        self._looked_into: dict[str, tuple[int, str]] = {}  # optimizer -> size of its state, what is wrong in it

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

    def is_foreign(self, optimizer: Optimizer) -> bool:
        """Not protected, nor perhaps a part of an object of the script's own that is."""
        given = (*self.optimizers.values(), *self.local.values())
        return not any(optimizer is o for o in given) and not self.has_own_objects

    @property
    def has_own_objects(self) -> bool:
        """Some are of the script's own making, with a state that they make up themselves."""
        return any(_is_of_script(o) for o in (*self.objects.values(), *self.local.values()))

    def known(self) -> set[int]:
        """The ids of all that is protected, and of what that holds, as far as it can be seen."""
        found: set[int] = set()
        todo = [*self.modules.values(), *self.optimizers.values(), *self.objects.values(), *self.local.values()]
        while todo:
            value = todo.pop()
            if id(value) in found:
                continue
            found.add(id(value))
            if isinstance(value, nn.Module):
                todo += [*value.modules(), *value.parameters(), *value.buffers()]
            elif isinstance(value, dict):
                todo += value.values()
            elif isinstance(value, list | tuple):
                todo += value
            else:
                todo += getattr(value, "_schedulers", ())  # of torch's schedules that are made of others
        return found

    # ------------------------------------------------------------------------------------- walking

    def wrappers(self) -> Iterator[tuple[str, DistributedDataParallel]]:
        """Each with the name of what was protected."""
        for name, module in self.modules.items():
            for m in module.modules():
                if isinstance(m, DistributedDataParallel):
                    yield name, m

    def look_at_wrappers(self, world_size: int) -> None:
        """All is protected and the loop begins: what their hooks keep is protected, too, or UsageError says why not."""
        given = {id(obj) for obj in (*self.objects.values(), *self.local.values())}
        problems = [text for name, module in self.modules.items() if (text := _problem(name, module))]
        for name, wrapper in self.wrappers():
            problems += wrappers.problems(name, wrapper, world_size, given)
            self._power_sgd += wrappers.power_sgd_of(wrapper)
        if problems:
            raise UsageError(problems)
        self.objects |= {f"hook {i}": hook for i, hook in enumerate(self._power_sgd)}

    @property
    def changes_at_the_end(self) -> bool:
        """Some of the local state changes when the last collective of a block has ended."""
        return bool(self._power_sgd)

    def errors(self) -> list[tuple[str, torch.Tensor]]:
        """What communication hooks have left out on this rank."""
        hooks = enumerate(self._power_sgd)
        return [(f"{ERROR}{i}:{bucket}", t) for i, hook in hooks for bucket, t in hook.errors.items()]

    def put_errors(self, saved: dict[str, torch.Tensor]) -> None:
        for i, hook in enumerate(self._power_sgd):
            prefix = f"{ERROR}{i}:"
            hook.errors = {int(path.removeprefix(prefix)): t for path, t in saved.items() if path.startswith(prefix)}

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        out = []
        for name, module in self.modules.items():
            for path, p in module.named_parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    out.append((f"{name}.{path}", p))
            out.extend((f"{name}.{path}", count) for path, count in _counters(module))
        for name, opt in self.optimizers.items():
            for g, group in enumerate(opt.param_groups):
                for i, p in enumerate(group["params"]):
                    if id(p) not in seen:
                        seen.add(id(p))
                        out.append((f"{name}.{g}.{i}", p))
        return out

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Every module buffer that may differ from rank to rank. The last walk is kept while it holds."""
        if self._buffers is None or any(home.get(key) is not b for home, key, b in self._homes.values()):
            self._homes, seen = {}, set()
            for name, module in self.modules.items():
                seen |= {id(count) for _, count in _counters(module)}
                for path, m in module.named_modules():
                    for key, b in m._buffers.items():
                        if b is None or id(b) not in seen:
                            seen.add(id(b) if b is not None else 0)
                            self._homes[".".join(filter(None, (name, path, key)))] = m._buffers, key, b
            self._buffers = [(path, b) for path, (_, _, b) in self._homes.items() if b is not None]
        return self._buffers

    def look_for_buffers(self) -> None:
        """A forward pass may have made some."""
        self._buffers = None

    def shape_buffers(self, shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, torch.Tensor]:
        """The buffers, which are those of `shapes` then: what is there beyond or does not fit was made since."""
        self.look_for_buffers()
        found = dict(self.buffers())
        for path in found.keys() - shapes.keys():
            home, key, _ = self._homes[path]
            home[key] = None
        for path, (dtype, shape) in shapes.items():
            t = found.get(path)
            if path in self._homes and (t is None or t.dtype != dtype or tuple(t.shape) != shape):
                home, key, _ = self._homes[path]
                device = t.device if t is not None else next((b.device for b in found.values()), None)
                home[key] = torch.empty(shape, dtype=dtype, device=device)
        return dict(self.buffers())

    def look_at_buffers(self, closely: bool = False) -> Seen:
        """As they are now, to be compared with `still_so`.

        Kernels such as batch_norm write statistics without counting a version, so small ones are copied; on a device,
        where comparing copies would hold the training up, only when asked to look closely.
        """
        return [
            (b, b._version, b.clone() if b.nbytes <= SMALL_BYTES and (closely or b.device.type == "cpu") else None)
            for _, b in self.buffers()
        ]

    def still_so(self, seen: Seen) -> bool:
        """The buffers are those that were `seen`, with the same numbers in them."""
        now = self.buffers()
        return len(now) == len(seen) and all(
            b is was and b._version == version and (numbers is None or _same_bits(b, numbers))
            for (_, b), (was, version, numbers) in zip(now, seen, strict=True)
        )

    def tensors(self) -> list[torch.Tensor]:
        """Every shared tensor that lives in a module or an optimizer."""
        out = [p for _, p in self.parameters()]
        for opt in self.optimizers.values():
            out.extend(optimizers.tensors_of(opt))
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

    def with_grads(self) -> list[torch.Tensor]:
        return [p for p in self._flat if _grad(p) is not None]

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
        self._at_begin = self._now(self._at_commit[1] if self._at_commit is not None else self._at_begin)
        self._stages = moments.Stages(self.objects)
        self.withheld = self._why_withheld(self._at_begin)

    def _now(self, before: Moment | None = None) -> Moment:
        return Moment(self.optimizers, self.objects, before)

    def note_commit(self, step: int) -> None:
        """The block before `step` counts; the code after it comes next."""
        self._at_commit = step, self._now(self._at_begin)

    def reach_top(self, step: int) -> None:
        """The code after the last block has been run: what it has changed is as it is on the others."""
        if self._at_top is not None and self._at_top[0] == step:
            self._at_top[1].put_back()
        self._at_top, self.top = None, step

    def hold_top(self, step: int) -> None:
        """The code after the last block has been run, and is run again for show."""
        self._at_top = step, self._now()

    def look_for_withheld(self) -> None:
        """The same between blocks."""
        self.withheld = self._why_withheld(self._now())

    def _why_withheld(self, moment: Moment) -> str:
        for name, opt in self.optimizers.items():
            size = sum(map(len, opt.state.values()))
            if self._looked_into.get(name, (-1, ""))[0] != size:
                self._looked_into[name] = size, optimizers.withheld(name, opt)
        found = (*(kept.problem for kept in moment.objects.values()), *(why for _, why in self._looked_into.values()))
        return next(filter(None, found), "")

    def check_small(self, at_begin: bool) -> int:
        """A short name for hyper-parameters and plain objects, as they are or as the open block had found them."""
        return zlib.crc32(repr((self._at_begin if at_begin else self._now()).values).encode())

    def rewind_scalers(self, received: bool) -> None:
        moments.forget_stages(self.objects)
        if not received:
            self._stages.put_back()

    def rewind_small(self) -> None:
        self._at_begin.put_back()

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
        self._undo_kept = [optimizers.Kept(opt) for opt in self.optimizers.values()]

    def is_as_copied(self) -> bool:
        """Every shared tensor has the numbers that it had at `save_undo`."""
        return all(_same_bits(t.detach(), c.to(t.device)) for t, c in self._undo)

    def undo(self) -> None:
        """Put back what `save_undo` had copied; state that did not exist then is dropped."""
        with torch.no_grad():
            for t, c in self._undo:
                t.detach().copy_(c)
        for kept in self._undo_kept:
            kept.put_back()
        self.rewind_small()

    def drop_undo_if_large(self) -> None:
        """Give the copies' memory back where it is scarce; else keep the pages warm for the next careful step."""
        size = sum(c.numel() * c.element_size() for _, c in self._undo)
        if size > memory.available_bytes() / 50:
            self._undo = []

    def clear_grads(self) -> None:
        for _, p in self._parameters_cached():
            p.grad = None
        for obj in self.local.values():  # each rank may have models of its own
            if isinstance(obj, nn.Module | Optimizer):
                obj.zero_grad()

    # ------------------------------------------------------------------------------------- moving

    def describe(
        self, step: int, last_sync: int, buffers: bool = False, behind: bool = False
    ) -> tuple[Manifest, list[torch.Tensor]]:
        """The manifest of what this rank holds, and the tensors it speaks of, in order.

        `behind`: also for those who have the code before the block of `step` still to run.
        """
        tensors: list[torch.Tensor] = []
        infos: list[TensorInfo] = []
        taken: dict[int, tuple[torch.Tensor, TensorRef]] = {}  # by id
        by_path: dict[str, torch.Tensor] = {}

        def take(path: str, t: torch.Tensor) -> TensorRef:
            by_path.setdefault(path, t)
            if id(t) in taken:
                return taken[id(t)][1]
            taken[id(t)] = (t, TensorRef(len(tensors)))
            flat = t.detach()
            if not flat.is_contiguous():
                flat = flat.contiguous()
            tensors.append(flat)
            dtype = str(t.dtype).removeprefix("torch.")
            address = flat.data_ptr() if flat.device.type == "cpu" else 0
            infos.append(TensorInfo(path, dtype, tuple(t.shape), t.device.type == "cpu", address))
            return taken[id(t)][1]

        def take_then(path: str, t: torch.Tensor) -> TensorRef:
            now = by_path.get(path)
            return take(path, now) if now is not None and _same_kind(now, t) and _same_bits(now, t) else (
                take(f"{AT_COMMIT}{path}", t)
            )

        parameters = self.parameters()
        paths = {id(p): path for path, p in parameters}
        values: dict[str, Any] = {"parameters": {path: take(path, p) for path, p in parameters}}
        values["buckets"] = self.buckets.describe()
        if buffers:  # local state, but better than none for a rank that joins with no past
            values["buffers"] = [take(f"{BUFFER}{path}", b) for path, b in self.buffers()]
        for name, opt in self.optimizers.items():
            values[f"optimizer {name}"] = optimizers.describe(name, opt, take, paths)
        for name, obj in self.objects.items():
            values[f"object {name}"] = plain(name, state_of(obj), take)
        values["top"] = self.top == step
        if behind and self._at_commit is not None and self._at_commit[0] == step:
            values["commit"] = self._at_commit[1].describe(take_then)
        manifest = Manifest(step=step, tensors=infos, values=msgspec.msgpack.encode(values), last_sync=last_sync)
        return manifest, tensors

    def targets(self, manifest: Manifest) -> list[torch.Tensor]:
        """Where the tensors of a peer's manifest go, in its order: our own where we have them, else new ones."""
        mine = dict(self.parameters())
        values = msgspec.msgpack.decode(manifest.values)
        for name, opt in self.optimizers.items():
            optimizers.take_groups(name, opt, values[f"optimizer {name}"], mine)
        if self.adopting:  # else buffers are local state: each rank has its own
            mine |= {f"{BUFFER}{path}": b for path, b in self.buffers()}
        kept = self._object_tensors()
        out = []
        for info in manifest.tensors:
            t = mine.get(info.path)
            if t is None:
                t = self._optimizer_tensor(info)
            if t is None and info.fits(own := kept.get(info.path)):
                t = own
            if t is None:
                out.append(torch.empty(info.shape, dtype=dtype_of(info.dtype)))
                continue
            if not info.fits(t):
                raise StateError(
                    f"protected tensor {info.path} is {info.dtype}{list(info.shape)} at the source and "
                    f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} here; the script built another model"
                )
            out.append(t)
        return out

    def _object_tensors(self) -> dict[str, torch.Tensor]:
        """Those in protected containers, by path, but for parameters and buffers, which have names of their own."""
        seen = {id(t) for _, t in (*self.parameters(), *self.buffers())}
        found: dict[str, torch.Tensor] = {}
        for name, obj in self.objects.items():
            for path, t in own_tensors(name, obj).items():
                if id(t) not in seen:
                    seen.add(id(t))
                    found[path] = t
        return found

    def _optimizer_tensor(self, info: TensorInfo) -> torch.Tensor | None:
        name, _, rest = info.path.partition("/")
        opt = self.optimizers.get(name)
        if opt is None or not rest:
            return None
        found = optimizers.tensor_at(opt, rest, tuple(info.shape))
        if found is None or found[0] is not None:
            return found[0] if found is not None else None
        return torch.empty(info.shape, dtype=dtype_of(info.dtype), device="cpu" if info.on_cpu else found[1])

    def accept(self, manifest: Manifest, tensors: list[torch.Tensor], behind: bool = False) -> None:
        """Take over a peer's state; `tensors` are those of `targets`, now filled. `behind`: see `describe`."""
        values = msgspec.msgpack.decode(manifest.values)
        missing = {path for path, _ in self.parameters()} ^ set(values["parameters"])
        if missing:
            raise StateError(f"the source and this rank protect different parameters: {sorted(missing)[:5]}")
        for name, opt in self.optimizers.items():
            optimizers.accept(opt, values[f"optimizer {name}"], tensors)
        for name, obj in self.objects.items():
            take_over(obj, values[f"object {name}"], tensors)
        self.buckets.accept(msgspec.convert(values.get("buckets", []), list[Settled]))
        self._arrive_between(manifest, tensors, values.get("commit"), values.get("top", True), behind)

    def _arrive_between(
        self, manifest: Manifest, tensors: list[torch.Tensor], then: dict[str, Any] | None, at_top: bool, behind: bool
    ) -> None:
        """The state is as the source has it. Who is `behind` has some code still to run: see `moments`."""
        step, now = manifest.step, self._now()
        self._at_commit = None if at_top else (step, now)
        if then is not None:
            own, at_commit = self._object_tensors(), list(tensors)
            for i, info in enumerate(manifest.tensors):
                t = own.get(info.path.removeprefix(AT_COMMIT))
                if info.path.startswith(AT_COMMIT) and t is not None and info.fits(t):
                    at_commit[i] = t.copy_(tensors[i])
            moments.accept(then, at_commit, self.optimizers, self.objects)
            self._at_commit = step, self._now()
        if not behind:
            now.put_back()
        self._at_top = (step, now) if behind and at_top else None
        self.top = -1 if behind else step

    @property
    def can_reach_top(self) -> bool:
        """Without the code that this rank has still to run: what it would change is known."""
        return self._at_top is not None


def _problem(name: str, value: Any) -> str:
    if isinstance(value, Optimizer):
        own = (p for group in value.param_groups for p in group["params"])
        return optimizers.problem(name, value) or wrappers.sharded(name, (), own)
    if isinstance(value, nn.Module):
        return wrappers.sharded(name, value.modules(), value.parameters())
    return values.problem(name, value)


def _is_of_script(obj: Any) -> bool:
    """With a state that it makes up itself."""
    return hasattr(obj, "load_state_dict") and not type(obj).__module__.startswith(("torch.", "onward."))


def _same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape, a.device, a.layout) == (b.dtype, b.shape, b.device, b.layout)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided:
        parts = ((a._indices(), b._indices()), (a._values(), b._values()))
        return all(x.shape == y.shape and _same_bits(x, y) for x, y in parts)
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is not equal to itself


def _counters(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that are alike on every rank, since they count what all do; they change with the parameters."""
    found = ((path, m) for path, m in module.named_modules() if isinstance(m, AveragedModel))
    return [(f"{path}.n_averaged" if path else "n_averaged", m.n_averaged) for path, m in found]
