"""What a connection to MySQL demands of TLS, and the context that keeps it.

PyMySQL's own arguments do not say it all: without a CA of one's own its ``ssl_verify_identity`` compares no names.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.errors import ExportQueueError, InvalidArgument

_VERIFYING = ("VERIFY_CA", "VERIFY_IDENTITY")
_FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_cipher", "ssl_key")
_SWITCHES = ("ssl_check_hostname", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")


@dataclass(frozen=True, slots=True)
class TlsDemand:
    """What is demanded.

    :param mode: one of MySQL's modes.
    :param files: CA, certificate, key and ciphers, by option.
    """

    mode: str
    files: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of PyMySQL; files are read.

        :raises OSError: a file cannot be read.
        """
        if self.mode == "PREFERRED":
            return {}  # what PyMySQL does by itself
        if self.mode == "DISABLED":
            return {"ssl_disabled": True}
        files = self.files
        if self.mode in _VERIFYING:
            context = ssl.create_default_context(cafile=files.get("ssl_ca"), capath=files.get("ssl_capath"))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which the certificates that MySQL makes do not pass
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
    """Say what options demand; a CA alone demands that the server's certificate and name are verified.

    :param options: as :func:`~export_queue.core.drivers.mysql_options` has read them.
    :raises ExportQueueError: they contradict each other.
    """
    files = {name: options[name] for name in _FILES if name in options}
    switches = {name: options[name] for name in _SWITCHES if name in options}
    if "ssl_mode" in options and switches:
        raise error(f"{where}: ssl_mode says already what {', '.join(switches)} says; give one of them")
    mode = options.get("ssl_mode") or _mode(switches, files)
    has_ca = "ssl_ca" in files or "ssl_capath" in files
    if mode == "REQUIRED" and has_ca:
        mode = "VERIFY_CA"  # as MySQL's own clients do
    if mode in ("DISABLED", "PREFERRED") and files:
        raise error(f"{where}: {', '.join(files)} has no meaning with the TLS mode {mode}")
    if ("ssl_key" in files) > ("ssl_cert" in files):
        raise error(f"{where}: ssl_key goes with ssl_cert")
    if switches.get("ssl_disabled") and len(switches) > 1:
        raise error(f"{where}: ssl_disabled contradicts {', '.join(set(switches) - {'ssl_disabled'})}")
    wants_none = switches.get("ssl_verify_cert") is False
    if wants_none and (has_ca or mode in _VERIFYING):
        raise error(f"{where}: ssl_verify_cert=false contradicts a CA, and options that verify the server's name")
    names = {switches.get(name) for name in ("ssl_check_hostname", "ssl_verify_identity")}
    if names >= {True, False}:
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
