"""What a manager is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.core.job import Limits
from onward.core.policy import Policy
from onward.core.published import Rules


@dataclass(frozen=True)
class ManagerSettings:
    """One job, as the command line describes it."""

    world_size: int
    nodes: int
    policies: tuple[Policy, ...]
    limits: Limits
    hang_floor_s: float = 0.7
    hang_first_s: float = 120.0
    node_timeout_s: float = 5.0  # a node that has been silent for longer is lost
    fail_stop_s: float = 0.0  # 0: silence is no proof of death; else the user's word that after so long it is
    job: str = ""  # its name, where it was given one
    seat: str = ""  # whoever started this manager, and can tell that one before it there is dead
    rules: Rules = field(default_factory=Rules)  # for published faults
    wall_s: float = 0.0  # what makes a time of day, the same everywhere, out of this process's clock
