"""The state directory's secrets: a CA, a server certificate, the admin token, and the kubeconfig that names them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def write_private(path: Path, text: str | bytes) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    data = text.encode() if isinstance(text, str) else text
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)


def token(state: Path, name: str) -> str:
    """The secret in a file of the state directory, made on first use."""
    path = state / name
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32) + "\n")
    return path.read_text(encoding="utf-8").strip()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(subject: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def ensure(state: Path, hosts: tuple[str, ...]) -> tuple[Path, Path, Path]:
    """(CA certificate, server certificate, server key); kept between starts, renewed when a host is new."""
    ca_crt, ca_key = state / "ca.crt", state / "ca.key"
    crt, key = state / "server.crt", state / "server.key"
    if not (ca_crt.exists() and ca_key.exists()):
        private = ec.generate_private_key(ec.SECP256R1())
        subject = _name("onward-ca")
        public = private.public_key()
        cert = (
            _builder("onward-ca", subject, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .sign(private, hashes.SHA256())
        )
        write_private(ca_key, _pem(private))
        write_private(ca_crt, cert.public_bytes(serialization.Encoding.PEM))
        crt.unlink(missing_ok=True)
    wanted = "\n".join(sorted({"127.0.0.1", "::1", *hosts}))
    marker = state / "server.hosts"
    if not (crt.exists() and key.exists() and marker.exists() and marker.read_text(encoding="utf-8") == wanted):
        _issue(ca_crt, ca_key, crt, key, wanted.split("\n"))
        write_private(marker, wanted)
    return ca_crt, crt, key


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=sign_certificates, crl_sign=sign_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _issue(ca_crt: Path, ca_key: Path, crt: Path, key: Path, hosts: list[str]) -> None:
    ca = x509.load_pem_x509_certificate(ca_crt.read_bytes())
    signer = serialization.load_pem_private_key(ca_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    private = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in NAMES]
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    cert = (
        _builder("onward-api", ca.subject, private.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(signed_by, critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_private(key, _pem(private))
    write_private(crt, cert.public_bytes(serialization.Encoding.PEM))


def kubeconfig(state: Path, url: str, ca: Path, admin: str, name: str = "onward") -> Path:
    """Writes STATE/kubeconfig, complete in itself."""
    import base64

    authority = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": admin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
    }
    path = state / "kubeconfig"
    write_private(path, yaml.safe_dump(config, sort_keys=False))
    return path
