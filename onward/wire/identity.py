"""Who belongs to a job, shown and checked by TLS 1.3 on both ends, wherever a connection leaves the machine.

All that a job shares is its token. From it every process derives the same key and the same certificate, which is the
only one it accepts: so a peer of another job is refused, nobody on the way can read, change or add anything, and a
server proves itself as well as a client does. Nothing depends on a clock. Certificates that somebody else has minted
for the job can take their place: an identity is but the names of their files.

On loopback, where only root could listen, there is no TLS. Each connection is judged by the address that it was made
to, so both of its ends come to the same answer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ENV = "ONWARD_TLS"  # CERT:KEY:CA, for the processes of an agent
NAME = "onward"  # asked for by every client; not checked, since addresses come and go with pods
_PURPOSE = b"onward: the identity of a job"


@dataclass(frozen=True)
class Identity:
    """The token of a job, and the files to show and to check; without them no connection is encrypted."""

    token: bytes = field(repr=False)
    cert: str = ""
    key: str = ""
    ca: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What a process is told so that it has this identity too."""
        files = os.pathsep.join((self.cert, self.key, self.ca)) if self.cert else ""
        return {"ONWARD_TOKEN": self.token.hex(), ENV: files}

    @staticmethod
    def from_environment() -> Identity:
        cert, key, ca = (os.environ.get(ENV, "").split(os.pathsep) + ["", "", ""])[:3]
        return Identity(bytes.fromhex(os.environ["ONWARD_TOKEN"]), cert, key, ca)

    def at(self, host: str, server: bool = False) -> ssl.SSLContext | None:
        """For a connection to `host`; None: it does not leave the machine."""
        if not self.cert or on_this_machine(host):
            return None
        return self._server if server else self._client

    @cached_property
    def _server(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # nobody resumes anything
        return context

    @cached_property
    def _client(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.cert, self.key)
        context.load_verify_locations(self.ca)
        return context

    # For plain blocking sockets

    def connected(self, sock: socket.socket, host: str) -> socket.socket:
        """The same connection, encrypted where it leaves the machine. OSError when the peer is not of this job."""
        context = self.at(host)
        return sock if context is None else context.wrap_socket(sock, server_hostname=NAME)

    def accepted(self, sock: socket.socket) -> socket.socket:
        """The other end of it."""
        context = self.at(sock.getsockname()[0], server=True)
        return sock if context is None else context.wrap_socket(sock, server_side=True)


def on_this_machine(host: str) -> bool:
    """Addresses only: our messages hold no names, but for the one that every machine has."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host in ("localhost", "")  # no host: a Unix socket


def derived(token: bytes, directory: Path) -> Identity:
    """The identity that follows from a token alone, with its files in `directory`, which must be ours."""
    key, cert = _papers(token)
    paths = []
    for name, data in (("identity.crt", cert), ("identity.key", key)):
        path = directory / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as f:
            f.write(data)
        paths.append(str(path))
    return Identity(token, paths[0], paths[1], paths[0])


def kept_in_memory(token: bytes) -> Identity:
    """The same for a process that starts no others, and leaves no files."""
    with tempfile.TemporaryDirectory(prefix="onward-") as directory:
        identity = derived(token, Path(directory))
        _ = identity._server, identity._client
    return identity


def _papers(token: bytes) -> tuple[bytes, bytes]:
    """The key and the certificate, the same for the same token: nothing in them is drawn, and none of it ever ends."""
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(hmac.new(token, _PURPOSE, hashlib.sha256).digest())
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, f"onward job {raw.hex()[:16]}")])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(raw[:8], "big") | 1)
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(9999, 12, 31))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret, cert.public_bytes(serialization.Encoding.PEM)
