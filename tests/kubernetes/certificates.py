"""An authority of a cluster's own, and the certificates by which its parts know one another."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=1)
_SKEW = dt.timedelta(minutes=5)
_USES = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and writes all files to one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tidemark-tests")
        builder = _builder(self._name, self._key.public_key(), self._name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        signed = builder.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.certificate = folder / "authority.crt"
        """The file of the authority's own certificate."""
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, user: str, *groups: str, address: str = "127.0.0.1") -> Pair:
        """A certificate by which a user of these groups is known, and by which a server at ``address`` is."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        signed = (
            _builder(_name(user, *groups), key.public_key(), self._name)
            .add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = user.replace(":", "-")
        pair = Pair(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


def _name(user: str, *groups: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )
