"""Devices: extended resources are handed out by number, and who has which is on disk before a pod sees it.

The kubelet's device manager, with a vendor's plugin in one. What a pod gets to know depends on the resource's name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from onward.core import quantity
from onward.kube.objects import Obj

BUILT_IN = ("cpu", "memory", "pods", "ephemeral-storage")


class NotEnough(Exception):
    """The scheduler thought that there were enough devices; there are not."""


def is_device(resource: str) -> bool:
    return resource not in BUILT_IN and not resource.startswith("hugepages-") and "/" in resource


class Devices:
    """Device numbers of one node, by resource and container."""

    def __init__(self, file: Path, capacity: dict[str, str]) -> None:
        self._file = file
        self.capacity = {r: quantity.whole(v) for r, v in capacity.items() if is_device(r)}
        self._held: dict[str, dict[str, dict[str, list[int]]]] = {}  # pod -> container -> resource -> numbers
        if file.exists():
            self._held = json.loads(file.read_text())

    def allocate(self, pod: str, spec: Obj) -> dict[str, dict[str, list[int]]]:
        """For each container of the pod, its devices. The same answer when asked again. What an init container had,
        those after it have, too."""
        if pod in self._held:
            return self._held[pod]
        given: dict[str, dict[str, list[int]]] = {}
        before: dict[str, set[int]] = {}  # resource -> what init containers have, and give back
        inits = spec.get("initContainers") or []
        passing = {c["name"] for c in inits if c.get("restartPolicy") != "Always"}
        for container in [*inits, *spec["containers"]]:
            limits = (container.get("resources") or {}).get("limits") or {}
            for resource in filter(is_device, limits):
                want = quantity.whole(limits[resource])
                if want == 0:
                    continue
                again = before.setdefault(resource, set())
                free = [*sorted(again), *self._free(resource, given)]
                if len(free) < want:
                    raise NotEnough(
                        f"Allocate failed due to requested number of devices unavailable for {resource}. "
                        f"Requested: {want}, Available: {len(free)}, which is unexpected"
                    )
                taken = sorted(free[:want])
                given.setdefault(container["name"], {})[resource] = taken
                if container["name"] in passing:
                    again.update(taken)
                else:
                    again.difference_update(taken)
        if given:
            self._held[pod] = given
            self._save()
        return given

    def _free(self, resource: str, also: dict[str, dict[str, list[int]]]) -> list[int]:
        taken: set[int] = set()
        for pod in [*self._held.values(), also]:
            for resources in pod.values():
                taken.update(resources.get(resource, ()))
        return [n for n in range(self.capacity.get(resource, 0)) if n not in taken]

    def release(self, pod: str) -> None:
        if self._held.pop(pod, None) is not None:
            self._save()

    def pods(self) -> list[str]:
        return list(self._held)

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        with open(new, "w") as f:
            json.dump(self._held, f)
            f.flush()
            os.fsync(f.fileno())
        new.rename(self._file)


def variables(resources: dict[str, list[int]]) -> dict[str, str]:
    """What a container's process sees of its devices."""
    found: dict[str, str] = {}
    for resource, numbers in resources.items():
        text = ",".join(map(str, numbers))
        if resource.startswith("nvidia.com/"):
            found |= {"CUDA_VISIBLE_DEVICES": text, "NVIDIA_VISIBLE_DEVICES": text}
        elif resource.startswith("huawei.com/Ascend"):
            found |= {"ASCEND_VISIBLE_DEVICES": text, "ASCEND_RT_VISIBLE_DEVICES": text}
    return found


def device_annotations(given: dict[str, dict[str, list[int]]]) -> dict[str, str]:
    """`huawei.com/Ascend910: Ascend910-0,Ascend910-1`, which a downward API line can read."""
    numbers: dict[str, list[int]] = {}
    for resources in given.values():
        for resource, some in resources.items():
            if resource.startswith("huawei.com/"):
                numbers.setdefault(resource, []).extend(some)
    return {r: ",".join(f"{r.partition('/')[2]}-{n}" for n in sorted(set(ns))) for r, ns in numbers.items()}
