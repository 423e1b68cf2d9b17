"""What is small and moves with the steps: hyper-parameters, schedules, scalers, counters; as it was at one moment.

Three moments matter. A redo begins from the *begin* of its block. Between two blocks such state may move, too: most
scripts step their schedule there. Whoever has that code still to run is given the state as of the *commit* before it,
runs it, and at the *top* of the loop takes over what the others have there: each change then counts once, also one that
was made of values from the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from onward.train import optimizers
from onward.train.values import Snapshot, Take, plain, take_over

AT_COMMIT = "commit:"  # in a manifest, before the path of a tensor that was another one at the commit


class Moment:
    """Hyper-parameters and plain objects as they are now. `before`: what has not moved since need not be copied."""

    def __init__(
        self, opts: Mapping[str, Optimizer], objects: Mapping[str, Any], before: Moment | None = None
    ) -> None:
        self.settings = {name: optimizers.Settings(opt) for name, opt in opts.items()}
        kept: Mapping[str, Snapshot] = before.objects if before is not None else {}
        self.objects: dict[str, Snapshot] = {name: Snapshot(name, o, kept.get(name)) for name, o in objects.items()}

    def put_back(self) -> None:
        for settings in self.settings.values():
            settings.put_back()
        for kept in self.objects.values():
            kept.put_back()

    @property
    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """To be compared: hyper-parameters, and objects."""
        settings = {name: s.values for name, s in self.settings.items()}
        return settings, {name: kept.value for name, kept in self.objects.items()}

    # ------------------------------------------------------------------------------------- moving

    def describe(self, take: Take) -> dict[str, Any]:
        """For another process. What nobody can be given is left out: it is found there as it is now."""
        settings = {
            name: [{k: plain(f"{name}/{g}/{k}", v, take) for k, v in group.items()} for g, group in enumerate(s.values)]
            for name, s in self.settings.items()
        }
        objects = {name: plain(name, kept.value, take) for name, kept in self.objects.items() if not kept.problem}
        return {"settings": settings, "objects": objects}


def accept(
    values: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    opts: Mapping[str, Optimizer],
    objects: Mapping[str, Any],
) -> None:
    """Be as another was at the moment that it had described."""
    for name, opt in opts.items():
        optimizers.accept_settings(opt, values["settings"].get(name, []), list(tensors))
    for name, obj in objects.items():
        if name in values["objects"]:
            take_over(obj, values["objects"][name], list(tensors))


# ------------------------------------------------------------------------------------------- scalers


_STAGES = "_per_optimizer_states"  # of torch's GradScaler


class Stages:
    """What a GradScaler has done for an optimizer since its last update, which is not in its state_dict.

    A redo that finds it done would step with gradients that are not unscaled.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._saved = [(obj, _apart(getattr(obj, _STAGES))) for obj in objects.values() if hasattr(obj, _STAGES)]

    def put_back(self) -> None:
        for obj, stages in self._saved:
            getattr(obj, _STAGES).update(stages)


def forget_stages(objects: Mapping[str, Any]) -> None:
    for obj in objects.values():
        if hasattr(obj, _STAGES):
            getattr(obj, _STAGES).clear()


def _apart(stages: dict[int, Any]) -> dict[int, Any]:
    found = "found_inf_per_device"
    return {optimizer: {**stage, found: dict(stage[found])} for optimizer, stage in stages.items()}
