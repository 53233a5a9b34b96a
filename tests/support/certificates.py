"""Certificates for the address of the tests' servers, each of which vouches for itself."""

from __future__ import annotations

import ipaddress
import os
import shutil
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
