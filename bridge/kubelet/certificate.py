"""The TLS side of the kubelet port: the serving certificate, and the CA that client certificates must come from."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)


def self_signed(node: str, address: str) -> tuple[bytes, bytes]:
    """Return (certificate, key) in PEM, for API servers that do not verify kubelets; `address`: InternalIP."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"[:64]),
        ]
    )
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        alternative = x509.DNSName(address)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def server_context(certificate: bytes, key: bytes, client_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context; a client certificate is optional, and verified against `client_ca` (PEM) when given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="hpc-bridge-tls-") as folder:  # the ssl module reads files only
        chain, private = Path(folder, "tls.crt"), Path(folder, "tls.key")
        chain.write_bytes(certificate)
        private.touch(mode=0o600)
        private.write_bytes(key)
        context.load_cert_chain(chain, private)
    if client_ca:
        context.load_verify_locations(cadata=client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
