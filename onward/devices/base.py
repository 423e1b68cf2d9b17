"""What onward needs to know about a kind of device, and nothing more.

A vendor is data: how its devices are found and limited, which backend of torch.distributed serves them, and which error
texts mean that the hardware or the network failed and not the user's program. The calls into torch live in `train/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# memory: the device lost or corrupted data, so the state of that rank must be repaired from a replica.
# communication: the state is fine, only the step has to be redone.
Kind = Literal["memory", "communication"]


@dataclass(frozen=True)
class ErrorPattern:
    """A text that makes an exception retryable, and why."""

    pattern: str  # a regular expression, searched without regard to case in "ExceptionType: text"
    kind: Kind
    why: str  # ends up in the incident: what this text means


def memory(pattern: str, why: str) -> ErrorPattern:
    return ErrorPattern(pattern, "memory", why)


def communication(pattern: str, why: str) -> ErrorPattern:
    return ErrorPattern(pattern, "communication", why)


@dataclass(frozen=True)
class Vendor:
    """One kind of device."""

    name: str  # as in torch.device(name)
    visible_devices_env: str  # limits which devices a process sees; empty where there is none
    device_files: str  # a glob below /dev with one file for each device; empty where there is none
    error_patterns: tuple[ErrorPattern, ...]


def count_devices(vendor: Vendor, env: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """How many devices of the vendor a process with this environment sees. Loads no driver and no torch."""
    limited = env.get(vendor.visible_devices_env) if vendor.visible_devices_env else None
    if limited is not None:
        count = 0
        for device in limited.split(","):
            # The drivers take the list up to its first invalid entry; "-1" is the usual way to hide all that follows.
            if device.strip() in ("", "-1", "NoDevFiles"):
                break
            count += 1
        return count
    return len(list(dev.glob(vendor.device_files))) if vendor.device_files else 0
