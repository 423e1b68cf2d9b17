"""What is the matter with a node or a rank, for as long as it lasts: for people, and for policies that act on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Condition:
    """A rank that is slower than the others, or a published fault."""

    kind: str  # "slow", or the level of a published fault
    node: int  # -1: an agent that stands by
    rank: int = -1  # -1: the whole node
    text: str = ""  # a sentence, with the evidence
    since: float = 0.0  # time of day
    until: float = 0.0  # when it ends by itself; 0: not known
    code: str = ""
    id: int = 0  # of a published fault

    @property
    def key(self) -> tuple[str, int, int, str, int]:
        """Equal for one condition at two times: its evidence may change."""
        return (self.kind, self.node, self.rank, self.code, self.id)
