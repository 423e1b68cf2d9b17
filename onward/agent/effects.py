"""What the agent's logic wants done: the process around it carries these out, and so does the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from onward.agent.saving import SavingEffect


@dataclass(frozen=True)
class StartProcess:
    process: int
    rank: int
    incarnation: int
    spare: bool
    attempt: int
    kept_at: str = ""  # fetch what this agent keeps for the rank, first
    log_at: str = ""  # fetch the log of the rank's set-up from this agent, first


@dataclass(frozen=True)
class KillProcess:
    process: int
    gently: bool = False  # SIGTERM first, with the grace period


@dataclass(frozen=True)
class SendRank:
    process: int
    message: object


@dataclass(frozen=True)
class FetchLocal:
    """Get what another agent keeps for the rank of a process that is there already."""

    process: int
    kept_at: str


@dataclass(frozen=True)
class SendPeer:
    """To the agent that listens at `peer`."""

    peer: str
    message: object


@dataclass(frozen=True)
class AnswerPeer:
    """To the agent with this id, on the connection it opened."""

    agent: str
    message: object


@dataclass(frozen=True)
class Say:
    """A sentence for people."""

    text: str


Effect = StartProcess | KillProcess | FetchLocal | SendRank | SendPeer | AnswerPeer | Say | SavingEffect
