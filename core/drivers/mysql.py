"""Options of MySQL, and the TLS context that a connection demands.

PyMySQL's own arguments do not suffice: without a CA its ``ssl_verify_identity`` compares no names.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.drivers.tables import MYSQL
from export_queue.core.errors import ExportQueueError, InvalidArgument

_VERIFYING = ("VERIFY_CA", "VERIFY_IDENTITY")
_FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_cipher", "ssl_key")
_SWITCHES = ("ssl_check_hostname", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
_IN_SSL = ("ca", "capath", "cert", "check_hostname", "cipher", "key")


def mysql_options(
    given: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Read the options of MySQL. ``ssl`` may hold TLS options, as an object or its JSON text."""
    given = dict(given)
    files = given.pop("ssl", None)
    if files is None or files == "":
        files = {}
    elif isinstance(files, str):
        try:
            files = json.loads(files)
        except ValueError:
            files = None
    if not isinstance(files, dict) or set(files) - set(_IN_SSL):
        raise error(
            f"{where}: extra ssl: expected an object with some of {', '.join(_IN_SSL)}",
            hint="to demand TLS without them, give ssl_mode the value REQUIRED, VERIFY_CA or VERIFY_IDENTITY",
        )
    for name, value in files.items():
        if given.get(f"ssl_{name}") is not None:
            raise error(f"{where}: option {name!r} of ssl is also given as 'ssl_{name}'")
        given[f"ssl_{name}"] = value
    return MYSQL.read(given, where=where, error=error)


@dataclass(frozen=True, slots=True)
class TlsDemand:
    """What a connection demands of TLS."""

    mode: str
    """One of MySQL's modes."""
    files: Mapping[str, str] = field(default_factory=dict)
    """CA, certificate, key and ciphers, by option."""

    def arguments(self) -> dict[str, Any]:
        """Read the files and return the arguments of PyMySQL."""
        if self.mode == "PREFERRED":
            return {}  # PyMySQL's default
        if self.mode == "DISABLED":
            return {"ssl_disabled": True}
        files = self.files
        if self.mode in _VERIFYING:
            context = ssl.create_default_context(cafile=files.get("ssl_ca"), capath=files.get("ssl_capath"))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that MySQL creates fail this check
            context.check_hostname = self.mode == "VERIFY_IDENTITY"
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], keyfile=files.get("ssl_key"))
        if "ssl_cipher" in files:
            context.set_ciphers(files["ssl_cipher"])
        return {"ssl": context}


def tls_demand(options: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument) -> TlsDemand:
    """Return what options demand of TLS. A CA alone demands that the server's certificate and name are verified."""
    files = {name: options[name] for name in _FILES if name in options}
    switches = {name: options[name] for name in _SWITCHES if name in options}
    if "ssl_mode" in options and switches:
        raise error(f"{where}: ssl_mode and {', '.join(switches)} say the same thing; give one of them")
    mode = options.get("ssl_mode") or _mode(switches, files)
    has_ca = "ssl_ca" in files or "ssl_capath" in files
    if mode == "REQUIRED" and has_ca:
        mode = "VERIFY_CA"  # as in MySQL's own clients
    if mode in ("DISABLED", "PREFERRED") and files:
        raise error(f"{where}: {', '.join(files)} has no meaning with the TLS mode {mode}")
    if ("ssl_key" in files) > ("ssl_cert" in files):
        raise error(f"{where}: ssl_key needs ssl_cert")
    if switches.get("ssl_disabled") and len(switches) > 1:
        raise error(f"{where}: ssl_disabled contradicts {', '.join(set(switches) - {'ssl_disabled'})}")
    if switches.get("ssl_verify_cert") is False and (has_ca or mode in _VERIFYING):
        raise error(f"{where}: ssl_verify_cert=false contradicts a CA, and options that verify the server's name")
    if {switches.get(name) for name in ("ssl_check_hostname", "ssl_verify_identity")} >= {True, False}:
        raise error(f"{where}: ssl_check_hostname contradicts ssl_verify_identity")
    return TlsDemand(mode, files)


def _mode(switches: Mapping[str, bool], files: Mapping[str, str]) -> str:
    if switches.get("ssl_disabled"):
        return "DISABLED"
    names = [switches[name] for name in ("ssl_check_hostname", "ssl_verify_identity") if name in switches]
    if any(names):
        return "VERIFY_IDENTITY"
    if "ssl_ca" in files or "ssl_capath" in files:
        return "VERIFY_CA" if names else "VERIFY_IDENTITY"
    if switches.get("ssl_verify_cert"):
        return "VERIFY_CA"
    return "REQUIRED" if files or switches.get("ssl_verify_cert") is False else "PREFERRED"
