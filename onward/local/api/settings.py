"""What one API server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MANAGER = "kube-controller-manager"
"""Who owns what the server does by itself: the name that programs know."""


@dataclass(frozen=True)
class Settings:
    """Flags of `python -m onward.local.api`."""

    state: Path
    """Directory for the database, certificates, tokens and kubeconfig; made when missing, mode 0700."""
    port: int = 0
    """Port on loopback; 0 takes a free one and remembers it in the state directory."""
    host: str = "127.0.0.1"
    extra_hosts: tuple[str, ...] = ()
    """More addresses to listen on and to put into the certificate (the bridge, for pods that use the API)."""
    history: int = 20_000
    """How many changes are kept for watches that resume; older ones answer 410."""
    max_pages: int = 0
    """Upper bound of the database in pages of 4 KiB; 0 means the disk is the bound."""
    service_range: str = "10.96.0.0/16"
    """Where services get their ClusterIP from."""
    bookmark_s: float = 60.0
    """How often a quiet watch is told the current resource version."""
    watch_queue: int = 20_000
    """Events a slow watcher may be behind before it is cut off and has to resume."""
    controllers: tuple[str, ...] = ()
    """Kinds (plural.group) that something acts on, so that creating one needs no warning."""
