"""What onward has to know about torch's collective operations, by name."""

from __future__ import annotations

BETWEEN_TWO = frozenset({"send", "recv", "recv_anysource"})  # only two ranks know of them
IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})  # the result overwrites the input
SAME_EVERYWHERE = frozenset(
    {"allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced", "barrier"}
)  # operations whose result one rank can tell another

_SYNCING = frozenset(
    {
        "allreduce",
        "allreduce_coalesced",
        "allgather",
        "_allgather_base",
        "allgather_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "alltoall",
        "alltoall_base",
        "barrier",
    }
)


def is_syncing(op: str) -> bool:
    """True when ending this operation proves that every member has entered it."""
    return op in _SYNCING
