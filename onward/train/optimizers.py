"""Optimizers: what one holds, how it is put back after a step that does not count, and how another takes it over.

Most keep a few tensors for each parameter and write them in place. Some keep lists of tensors, or put a new tensor
where an old one was (LBFGS), and a script may give one further parameters as it goes: all of that is put back and taken
over, too.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from onward.errors import StateError
from onward.train.values import Take, plain, rebuilt


def problem(name: str, opt: Optimizer) -> str:
    """Why it cannot be protected; empty when it can."""
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(opt).__mro__):
        return (
            f"protect: {name} is a ZeroRedundancyOptimizer: each rank holds a part of its state that no other has, so "
            "that a lost rank could not be replaced; use the optimizer it wraps"
        )
    return ""


def parameters_of(opt: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in opt.param_groups for p in group["params"])


def tensors_of(opt: Optimizer) -> Iterator[torch.Tensor]:
    """Those that are written in place. What is in lists is kept by `Kept` as a whole."""
    for state in opt.state.values():
        yield from (v for v in state.values() if isinstance(v, torch.Tensor))


class Settings:
    """The groups of an optimizer, with their parameters and hyper-parameters, at the start of a block."""

    def __init__(self, opt: Optimizer) -> None:
        self._groups = opt.param_groups
        self._saved = [{k: _copy(v) if k != "params" else list(v) for k, v in g.items()} for g in opt.param_groups]

    @property
    def values(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in saved.items() if k != "params"} for saved in self._saved]

    def put_back(self) -> None:
        del self._groups[len(self._saved) :]
        for group, saved in zip(self._groups, self._saved, strict=True):
            for k, v in saved.items():
                if k == "params":
                    group[k][:] = v
                elif isinstance(v, torch.Tensor) and isinstance(group.get(k), torch.Tensor):
                    group[k].copy_(v)
                else:
                    group[k] = v


class Kept:
    """What an optimizer held before an update, but for the numbers in its tensors, which are kept elsewhere."""

    def __init__(self, opt: Optimizer) -> None:
        self._opt = opt
        self._saved = {p: {k: _apart(v) for k, v in state.items()} for p, state in opt.state.items()}

    def put_back(self) -> None:
        """Each tensor stands where it stood; state that did not exist is dropped."""
        for p in [p for p in self._opt.state if p not in self._saved]:
            del self._opt.state[p]
        for p, saved in self._saved.items():
            state = self._opt.state[p]
            state.clear()
            state.update({k: _apart(v) for k, v in saved.items()})


def _apart(value: Any) -> Any:
    """As it is where it is written in place, else a copy of its own."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


# ------------------------------------------------------------------------------------------- moving


def describe(name: str, opt: Optimizer, take: Take, paths: Mapping[int, str]) -> dict[str, Any]:
    """Its groups and its state. `paths`: how parameters are called, by id."""
    groups = []
    for g, group in enumerate(opt.param_groups):
        values = {k: plain(f"{name}/{g}/{k}", v, take) for k, v in group.items() if k != "params"}
        groups.append({**values, "params": [paths[id(p)] for p in group["params"]]})
    state: dict[str, Any] = {}
    for g, group in enumerate(opt.param_groups):
        for i, p in enumerate(group["params"]):
            if p in opt.state:
                where = f"{g}.{i}"
                state[where] = {k: plain(f"{name}/{where}/{k}", v, take) for k, v in opt.state[p].items()}
    return {"groups": groups, "state": state}


def withheld(name: str, opt: Optimizer) -> str:
    """What another process could not be given; empty when there is nothing of that kind."""
    try:
        describe(name, opt, lambda path, t: None, defaultdict(str))
    except StateError as e:
        return str(e)
    return ""


def take_groups(name: str, opt: Optimizer, values: dict[str, Any], parameters: Mapping[str, torch.Tensor]) -> None:
    """Have the groups that the source has: its script may have added some since it began."""
    for g, saved in enumerate(values["groups"]):
        unknown = [path for path in saved["params"] if path not in parameters]
        if unknown:
            raise StateError(
                f"optimizer {name}: the source's group {g} has parameters that this rank does not know: {unknown[:5]}; "
                "protect the module they belong to"
            )
        own = [parameters[path] for path in saved["params"]]
        if g == len(opt.param_groups):
            opt.add_param_group({"params": own})
        elif [*map(id, opt.param_groups[g]["params"])] != [*map(id, own)]:
            opt.param_groups[g]["params"][:] = own
    del opt.param_groups[len(values["groups"]) :]


def tensor_at(opt: Optimizer, path: str, shape: tuple[int, ...]) -> tuple[torch.Tensor | None, torch.device] | None:
    """What is at `path` in its state: our own tensor where it fits, and its parameter's device. None: no such place."""
    where, _, key = path.partition("/")
    g, _, i = where.partition(".")
    try:
        p = opt.param_groups[int(g)]["params"][int(i)]
    except (IndexError, ValueError):
        return None
    t = opt.state[p].get(key) if p in opt.state else None
    return (t if isinstance(t, torch.Tensor) and tuple(t.shape) == shape else None), p.device


def accept_settings(opt: Optimizer, groups: list[dict[str, Any]], tensors: list[torch.Tensor]) -> None:
    """Take over hyper-parameters. Groups that have come since are left as they are."""
    for group, saved in zip(opt.param_groups, groups, strict=False):
        for k, v in saved.items():
            if k != "params":
                group[k] = rebuilt(v, tensors, group.get(k))


def accept(opt: Optimizer, values: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    """Take over the source's hyper-parameters and state; the groups are the same already."""
    accept_settings(opt, values["groups"], tensors)
    held = {id(p) for group in opt.param_groups for p in group["params"]}
    for p in [p for p in opt.state if id(p) not in held]:
        del opt.state[p]
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
                own[k] = rebuilt(v, tensors, own.get(k))
