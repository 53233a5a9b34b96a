"""Certificates for the address of the tests' servers, which vouch for themselves or which an authority issued."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.servers import HOST, unprivileged_account


def make_certificate(folder: Path, name: str = "certificate") -> Path:
    """Make a certificate; its key lies beside it, with the suffix ``.key``."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "export-queue-tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.with_suffix(".key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return path


class Authority:
    """A certificate authority of a test: its certificate, those that it issues, and its list of revoked ones.

    :param folder: where its files lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority-{folder.name}")])
        self._issued: dict[Path, int] = {}
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = self._begin(self._name, self._key).add_extension(usage, critical=True)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = self._write("authority", made.sign(self._key, hashes.SHA256()))
        """Who trusts this file trusts every certificate that the authority has issued."""

    def issue(self, name: str, *, common_name: str | None = None) -> Path:
        """Issue a certificate for the servers' address, or for a client; its key lies beside it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        made = self._begin(subject, key).add_extension(address, critical=False).sign(self._key, hashes.SHA256())
        path = self._write(name, made)
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.with_suffix(".key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        path.with_suffix(".key").chmod(0o600)
        self._issued[path] = made.serial_number
        return path

    def revoke(self, name: str, *certificates: Path) -> Path:
        """Write a list of revoked certificates."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        made = made.last_update(now - timedelta(days=1)).next_update(now + timedelta(days=1))
        for one in certificates:
            entry = x509.RevokedCertificateBuilder().serial_number(self._issued[one]).revocation_date(now)
            made = made.add_revoked_certificate(entry.build())
        return self._write(name, made.sign(self._key, hashes.SHA256()))

    def _begin(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))

    def _write(self, name: str, made: x509.Certificate | x509.CertificateRevocationList) -> Path:
        path = self._folder / f"{name}.pem"
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path


def hashed_folder(folder: Path, source: Path, suffix: str) -> Path:
    """Make a folder in which OpenSSL finds a certificate (suffix ``.0``) or a list of revoked ones (``.r0``).

    :raises FileNotFoundError: the program ``openssl`` is missing.
    """
    folder.mkdir()
    kind = "x509" if suffix == ".0" else "crl"
    options = ["-subject_hash"] if suffix == ".0" else ["-hash"]
    command = ["openssl", kind, "-in", str(source), "-noout", *options]
    name = subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout.strip()
    shutil.copyfile(source, folder / f"{name}{suffix}")
    return folder


def lend(certificate: Path, folder: Path) -> Path:
    """Copy a certificate and its key into a folder, for servers that do not run as root; return the copy."""
    copy = folder / certificate.name
    account = unprivileged_account()
    for source in (certificate, certificate.with_suffix(".key")):
        target = folder / source.name
        shutil.copyfile(source, target)
        target.chmod(0o600)
        if account is not None:
            os.chown(target, account.pw_uid, account.pw_gid)
    return copy
