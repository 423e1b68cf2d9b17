"""The shared secret of a job that runs on several nodes, from a file such as a mounted Secret."""

from __future__ import annotations

from pathlib import Path

from onward.errors import UsageError

LEAST_BYTES = 16


def read_token(path: Path) -> bytes:
    """The token in `path`; white space around it does not count, since editors and `echo` add some."""
    try:
        token = path.read_bytes().strip()
    except OSError as e:
        raise UsageError(f"token file {path}: {e.strerror}; give a file with the shared secret of the job") from e
    if len(token) < LEAST_BYTES:
        raise UsageError(
            f"token file {path}: {len(token)} bytes are too short for a secret; make one with: openssl rand -hex 32"
        )
    return token
