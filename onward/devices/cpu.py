"""CPU with gloo: what broken connections look like. Texts seen with torch 2.13 or present in its libraries."""

from __future__ import annotations

from onward.devices.base import Vendor, communication

VENDOR = Vendor(
    name="cpu",
    visible_devices_env="",
    device_files="",
    error_patterns=(
        communication(r"connection closed by peer", "gloo: a peer closed the connection"),
        communication(r"connection reset by peer", "gloo: a peer reset the connection"),
        communication(r"broken pipe", "gloo: the peer of a send is gone"),
        communication(r"timed out waiting", "gloo: a send or a receive did not complete in time"),
        communication(r"application timeout caused pair closure", "gloo: a pair was closed by a timeout"),
        communication(r"socket timeout", "a socket of the process group timed out"),
        communication(r"connectFullMesh failed", "gloo: the ranks could not connect to each other"),
        # Only where gloo speaks: a refused connection to the user's own database is not ours to retry.
        communication(r"\bgloo\b[^\n]{0,300}\brefused\b", "gloo: a peer is not listening any more"),
        communication(r"\bconnect \[[^\]\n]{0,80}\]:\d+[^\n]{0,80}\brefused\b", "gloo: no peer listens there"),
        communication(r"\bDistNetworkError\b", "torch.distributed: a network error"),
        communication(r"connection was likely closed", "the rendezvous store closed the connection"),
        communication(r"client socket has (timed out|failed)", "the rendezvous store cannot be reached"),
        communication(r"\bDistStoreError\b[^\n]{0,40}timeout", "a key of the rendezvous store did not appear"),
    ),
)
