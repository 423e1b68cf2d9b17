"""The shared secret of a job that runs on several nodes, from a file such as a mounted Secret."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from onward.errors import UsageError

LEAST_BYTES = 16


def read_token(path: Path) -> bytes:
    """The token in `path`; white space around it does not count, since editors and `echo` add some."""
    try:
        token = path.read_bytes()
    except OSError as e:
        raise UsageError(f"token file {path}: {e.strerror}; give a file with the shared secret of the job") from e
    return checked(token, f"token file {path}")


def checked(token: bytes, where: str) -> bytes:
    """The token without the white space around it. UsageError when it is too short for a secret."""
    token = token.strip()
    if len(token) < LEAST_BYTES:
        raise UsageError(
            f"{where}: {len(token)} bytes are too short for a secret; make one with: openssl rand -hex 32"
        )
    return token


def machine_token(path: Path) -> bytes:
    """A secret for the processes of this user on this machine: made by whoever comes first, read by the others."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, secrets.token_hex(32).encode() + b"\n")
        os.link(temporary, path)  # whole, or not at all, and only if there is none
    except FileExistsError:
        pass
    finally:
        os.close(fd)
        os.unlink(temporary)
    return read_token(path)
