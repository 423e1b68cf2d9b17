"""Values that can be protected: taken apart into what can be sent, built again, read from an object and put back.

Tensors, numbers, strings, bytes, None, and lists, tuples and dicts of them (also of derived types, such as named tuples
and OrderedDict); objects with `state_dict` and `load_state_dict`; and generators of random numbers. Anything else is
refused with its path. No pickle.

A script may hold on to what is inside a protected container, and the same thing may stand in several places of it. So
lists, dicts and tensors are put back into the objects that they were, and one that is sent comes out once.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from onward.errors import StateError

SMALL_BYTES = 256 << 10  # what is copied every step rather than believed to be unchanged
SCALARS = (bool, int, float, str, bytes, type(None))
# No user's list begins with these.
_TENSOR, _LONG, _KIND, _SAME = "\x00onward.tensor", "\x00onward.long", "\x00onward.kind", "\x00onward.same"
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers that MessagePack knows
_FACTORIES = {f.__name__: f for f in (int, float, bool, str, bytes, list, dict, tuple)}  # that a defaultdict may have
Take = Callable[[str, torch.Tensor], Any]


class TensorRef(msgspec.Struct, frozen=True, array_like=True, tag=_TENSOR):
    """Stands for tensor number `index` where a state dict had a tensor."""

    index: int


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"unknown tensor type {name!r} in a peer's state")
    return found


def problem(name: str, value: Any) -> str:
    """Why it cannot be protected; empty when it can."""
    if isinstance(value, torch.Tensor):
        return ""
    if isinstance(value, SCALARS):
        return (
            f"protect: {name} is a plain {type(value).__name__}, which cannot be put back in place; "
            f"keep it in a dict ({name}={{'value': ...}}) or in an object with state_dict and load_state_dict"
        )
    has_state = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    if not has_state and not isinstance(value, dict | list) and _generator(value) is None:
        return (
            f"protect: {name} ({type(value).__name__}) has no state that could be restored; it needs state_dict and "
            "load_state_dict, or must be a tensor, a dict, a list or a generator of random numbers"
        )
    try:
        plain(name, state_of(value), lambda path, t: TensorRef(0))
    except StateError as e:
        return f"protect: {e}"
    except RecursionError:
        return f"protect: {name} is too deep, or contains itself"
    return ""


# ------------------------------------------------------------------------------------------- objects


def state_of(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor | dict | list):
        return obj
    generator = _generator(obj)
    return generator[0]() if generator is not None else obj.state_dict()


class Snapshot:
    """The state of an object as it was, and how to put it back.

    What cannot be protected is kept as it is, and `problem` says what it is and where: a redo in this process still
    comes out right, but no other process can be given that state.
    """

    def __init__(self, name: str, obj: Any, before: Snapshot | None = None) -> None:
        self.problem = ""
        self._obj = obj
        self._held: dict[int, tuple[Any, Any]] = {}  # by id: what is changed in place, and what was in it
        self._versions: dict[int, int] = {}  # of large tensors, by id
        self._before = before
        self._root = state_of(obj)
        self._hold(name, self._root)
        self._before = None

    def _hold(self, path: str, value: Any) -> None:
        if type(value) in SCALARS or id(value) in self._held:
            return
        if isinstance(value, torch.Tensor):
            was = self._copied_before(value)
            self._held[id(value)] = (value, value.detach().clone() if was is None else was)
        elif isinstance(value, dict | list):
            self._try(_look, path, value)
            self._held[id(value)] = (value, [*value.items()] if isinstance(value, dict) else [*value])
            for part, v in value.items() if isinstance(value, dict) else enumerate(value):
                self._hold(f"{path}.{part}" if isinstance(value, dict) else f"{path}[{part}]", v)
        elif isinstance(value, tuple):
            self._try(_look, path, value)
            for i, v in enumerate(value):
                self._hold(f"{path}[{i}]", v)
        else:
            self._try(plain, path, value, lambda path, t: None)

    def _copied_before(self, t: torch.Tensor) -> torch.Tensor | None:
        """The copy of an earlier snapshot, of a large tensor that has not been written since."""
        if t.layout is not torch.strided or t.nbytes <= SMALL_BYTES or t.is_inference():
            return None
        self._versions[id(t)] = t._version
        if self._before is None or self._before._versions.get(id(t)) != t._version:
            return None
        held, was = self._before._held[id(t)]
        return was if held is t else None

    def _try(self, look: Callable[..., Any], *args: Any) -> None:
        try:
            look(*args)
        except StateError as e:
            self.problem = self.problem or str(e)

    @property
    def value(self) -> Any:
        """A copy of what was there."""
        return self._copy(self._root, {})

    def _copy(self, value: Any, made: dict[int, Any]) -> Any:
        if id(value) in made:
            return made[id(value)]
        if isinstance(value, tuple):
            return _tuple_of(type(value), [self._copy(v, made) for v in value])
        if id(value) not in self._held:
            return value
        _, was = self._held[id(value)]
        if isinstance(value, torch.Tensor):
            new: Any = was.clone()
        else:
            new = copy.copy(value)
        made[id(value)] = new
        if isinstance(value, dict):
            _refill(new, [(k, self._copy(v, made)) for k, v in was])
        elif isinstance(value, list):
            _refill(new, [self._copy(v, made) for v in was])
        return new

    def put_back(self) -> None:
        """In the same objects, whoever else holds them."""
        if not isinstance(self._obj, torch.Tensor | dict | list):
            return _load(self._obj, self.value)
        for value, was in self._held.values():
            if isinstance(value, torch.Tensor):
                with torch.no_grad():
                    value.detach().copy_(was)
            else:
                _refill(value, was)
        return None


def take_over(obj: Any, value: Any, tensors: list[torch.Tensor]) -> None:
    """Give `obj` the state that `plain` had taken apart elsewhere; `tensors` are those that it speaks of."""
    if isinstance(obj, torch.Tensor):
        with torch.no_grad():
            obj.detach().copy_(rebuilt(value, tensors, None))
    elif isinstance(obj, dict | list):
        rebuilt(value, tensors, obj)
    else:
        _load(obj, rebuilt(value, tensors, None))


def own_tensors(name: str, obj: Any) -> dict[str, torch.Tensor]:
    """The tensors that stand in a protected container, or are protected themselves, by their path."""
    found: dict[str, torch.Tensor] = {}
    if isinstance(obj, torch.Tensor | dict | list):
        plain(name, obj, lambda path, t: found.setdefault(path, t) is t)
    return found


def _load(obj: Any, state: Any) -> None:
    generator = _generator(obj)
    put = generator[1] if generator is not None else obj.load_state_dict
    put(state)


def _generator(obj: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to read and to put back where a stream of random numbers stands; None when `obj` is none."""
    if isinstance(obj, torch.Generator):
        return obj.get_state, lambda state: obj.set_state(state.cpu())
    if isinstance(obj, random.Random):
        return obj.getstate, lambda state: obj.setstate((state[0], tuple(state[1]), state[2]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.random.Generator):
        bits = obj.bit_generator
        return lambda: _told(bits.state), lambda state: setattr(bits, "state", json.loads(state))
    if numpy is not None and isinstance(obj, numpy.random.RandomState):
        return lambda: _told(obj.get_state(legacy=False)), lambda state: obj.set_state(json.loads(state))
    return None


def _told(state: Any) -> str:
    """As text: its numbers may have more than 64 bits, and some are arrays."""
    return json.dumps(state, default=lambda array: array.tolist())


# ------------------------------------------------------------------------------------------- apart, and built again


def plain(path: str, value: Any, take: Take) -> Any:
    """`value` with tensors taken out, made of what MessagePack knows; StateError names what is not."""
    return _plain(path, value, take, {})


def _plain(path: str, value: Any, take: Take, seen: dict[int, tuple[int, Any]]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise StateError(f"{path} is a sparse tensor, which can only be kept where it is")
        return take(path, value)
    if _is_numpy(value):
        return [_KIND, f"{_NUMPY}{value.dtype.name}", value.item()]
    if isinstance(value, SCALARS):
        return _scalar(value)
    if isinstance(value, list | dict):
        if id(value) in seen:
            return [_SAME, seen[id(value)][0]]
        seen[id(value)] = (len(seen), value)
    if isinstance(value, dict):
        name = _look(path, value)
        items = {k: _plain(f"{path}.{k}", v, take, seen) for k, v in value.items()}
        return items if name == "dict" else [_KIND, name, items]
    if isinstance(value, list | tuple):
        name = _look(path, value)
        parts = [_plain(f"{path}[{i}]", v, take, seen) for i, v in enumerate(value)]
        return parts if name == "list" else [_KIND, name, parts]
    raise StateError(
        f"{path} is a {type(value).__name__}; protected state is tensors, numbers, strings, bytes, and lists and "
        "dicts of them"
    )


def _is_numpy(value: Any) -> bool:
    """One of NumPy's numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_ | numpy.integer | numpy.floating)


def _scalar(value: Any) -> Any:
    """MessagePack knows the types themselves, not all that are derived from them."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return [_LONG, hex(value)]
    if type(value) in SCALARS:
        return value
    return next(kind(value) for kind in (int, float, str, bytes) if isinstance(value, kind))  # type: ignore[arg-type]


def rebuilt(value: Any, tensors: list[torch.Tensor], own: Any) -> Any:
    """The value that `plain` had taken apart, put into the lists and dicts of `own` where they have a place in it."""
    return _Builder(tensors).build(value, own)


class _Builder:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._made: list[Any] = []  # lists and dicts, in the order in which `plain` met them
        self._used: set[int] = set()  # ids of our own that have been put to use

    def build(self, value: Any, own: Any) -> Any:
        if isinstance(value, dict):
            return self._fill(dict, value, own)
        if not isinstance(value, list):
            return value
        match value:
            case [mark, index] if mark == _TENSOR:
                return self._tensors[index]
            case [mark, digits] if mark == _LONG:
                return int(digits, 16)
            case [mark, number] if mark == _SAME:
                return self._made[number]
            case [mark, name, content] if mark == _KIND:
                return self._of_kind(name, content, own)
        return self._fill(list, value, own)

    def _of_kind(self, name: str, content: Any, own: Any) -> Any:
        if name.startswith(_NUMPY):
            return sys.modules["numpy"].dtype(name.removeprefix(_NUMPY)).type(content)
        kind = _kind(name)
        if kind is None:
            raise StateError(f"protected state has a {name}, which is not known here; {_AT_TOP}")
        if not issubclass(kind, tuple):
            return self._fill(kind, content, own, _FACTORIES.get(name.partition("/")[2]))
        parts = own if isinstance(own, tuple) and len(own) == len(content) else [None] * len(content)
        return _tuple_of(kind, [self.build(v, o) for v, o in zip(content, parts, strict=True)])

    def _fill(self, kind: Any, content: Any, own: Any, factory: Any = None) -> Any:
        if type(own) is not kind or id(own) in self._used:
            own = kind.__new__(kind)
            if isinstance(own, defaultdict):
                own.default_factory = factory
        self._used.add(id(own))
        self._made.append(own)
        if isinstance(content, dict):
            old = dict(own)
            _refill(own, [(k, self.build(v, old.get(k))) for k, v in content.items()])
        else:
            parts = [*own, *[None] * len(content)]
            _refill(own, [self.build(v, o) for v, o in zip(content, parts, strict=False)])
        return own


def _refill(container: Any, content: list[Any]) -> None:
    """One by one: an `update` of a Counter would count."""
    container.clear()
    if isinstance(container, dict):
        for k, v in content:
            container[k] = v
    else:
        container.extend(content)


# ------------------------------------------------------------------------------------------- types by name


_NUMPY = "numpy:"
_AT_TOP = "define it at the top level of the script or of a module that it imports"
_names: dict[Any, str] = {kind: kind.__name__ for kind in (list, tuple, dict)}  # of those that were found by name


def _look(path: str, value: Any) -> str:
    """What the type of a container is called, for another process to find it by; StateError says what is wrong."""
    kind = type(value)
    for k in value if isinstance(value, dict) else ():
        if not isinstance(k, str | int | float | bool):
            raise StateError(f"{path} has a key of type {type(k).__name__}; only strings and numbers are protected")
    name = _names.get(kind)
    if name is None:
        name = f"{kind.__module__}:{kind.__qualname__}"
        if _kind(name) is not kind:
            raise StateError(f"{path} is a {kind.__name__}, which another process would not find by name; {_AT_TOP}")
        _names[kind] = name
    if isinstance(value, defaultdict) and value.default_factory is not None:
        factory = getattr(value.default_factory, "__name__", "")
        if _FACTORIES.get(factory) is not value.default_factory:
            raise StateError(
                f"{path} is a defaultdict that makes its values with {factory or value.default_factory}; one inside "
                f"protected state can use {', '.join(_FACTORIES)}"
            )
        name += f"/{factory}"
    return name


def _tuple_of(kind: Any, parts: list[Any]) -> Any:
    return tuple.__new__(kind, parts) if hasattr(kind, "_fields") else kind(parts)


def _kind(name: str) -> Any:
    """The type of that name, if it is loaded and no more than a kind of list, tuple or dict."""
    if name == "tuple":
        return tuple
    module, _, path = name.partition("/")[0].partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, list | tuple | dict) else None

