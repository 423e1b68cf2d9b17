"""What the process of a rank is told: by its agent, in the environment, and by its script, in `onward.init`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from onward.errors import UsageError
from onward.wire.identity import Identity


@dataclass(frozen=True)
class RankSettings:
    """Read once, before anything is set up."""

    socket: str  # where the agent listens
    process: int  # its number for this process
    identity: Identity
    local_world: int  # ranks on this node
    timeout_s: float  # of a collective
    device: str | None  # None: an accelerator if there is one, else the CPU
    backend: str | None  # None: the device's own library where each rank has a device to itself


def read_settings(timeout_s: float, device: str | None, backend: str | None) -> RankSettings:
    """UsageError where no agent has started this process."""
    socket = os.environ.get("ONWARD_SOCKET")
    if not socket:
        raise UsageError(
            "this process was not started by `onward run`; start the script with "
            f"`onward run --nproc-per-node N {os.path.basename(sys.argv[0] or 'script.py')}`"
        )
    return RankSettings(
        socket=socket,
        process=int(os.environ["ONWARD_PROCESS"]),
        identity=Identity.from_environment(),
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        timeout_s=timeout_s,
        device=device,
        backend=backend or os.environ.get("ONWARD_BACKEND"),
    )
