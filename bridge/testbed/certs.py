"""The test bed's certificate authority: everything on loopback is verified as in a real cluster.

One authority signs the serving certificates (API server, etcd, and the agent's kubelet port: the API server runs with
`--kubelet-certificate-authority`) and the client certificates (administrator, components, the API server towards
kubelets). Keys are EC P-256: made in a millisecond, where RSA takes a tenth of a second each.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""The user name with which the API server calls kubelets."""


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key in PEM, unencrypted, in the form that every part of Kubernetes reads."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can ever read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    return path


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _usage(**true: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    rest = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: true.get(name, False) for name in (*names, *rest)})


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


class CertificateAuthority:
    """A new authority whose files lie in `directory`: ca.crt, ca.key (0600), and whatever `write` puts there."""

    def __init__(self, directory: Path, common_name: str = "hpc-bridge testbed") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(common_name)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True, digital_signature=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.cert_file = directory / "ca.crt"
        self.cert_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.key_file = write_private(directory / "ca.key", key_pem(self._key))

    def issue(
        self, common_name: str, *, organizations: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> tuple[bytes, bytes]:
        """A certificate and its key, in PEM: for a server when `addresses` (IPs or DNS names) are given, and a client.

        Kubernetes takes a client's user name from `common_name` and its groups from `organizations`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if addresses else [])]
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(_name(common_name, organizations), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer_id, critical=False)
        )
        if addresses:
            names = x509.SubjectAlternativeName([_alternative(address) for address in addresses])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), key_pem(key)

    def issue_kubelet_serving(self, addresses: Sequence[str], node: str = "hpc-bridge") -> tuple[bytes, bytes]:
        """(certificate, key) in PEM for the agent's kubelet port on `addresses`; the API server will verify it."""
        return self.issue(f"system:node:{node}", organizations=["system:nodes"], addresses=addresses)

    def write(
        self, stem: str, common_name: str, *, organizations: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """`issue` into `<stem>.crt` and `<stem>.key` (0600) of the directory; returns the two paths."""
        certificate, key = self.issue(common_name, organizations=organizations, addresses=addresses)
        cert_file = self.directory / f"{stem}.crt"
        cert_file.write_bytes(certificate)
        return cert_file, write_private(self.directory / f"{stem}.key", key)

    def write_service_account_key(self) -> tuple[Path, Path]:
        """The key pair that signs service account tokens: (private sa.key, public sa.pub)."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = write_private(self.directory / "sa.key", key_pem(key))
        public = self.directory / "sa.pub"
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, spki))
        return private, public
