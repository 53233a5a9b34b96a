"""References to secrets, and to objects by import path.

Passwords are never stored, sent to Spark or shown. A reference is, and the process that opens a connection resolves it.

===================  ==========================================================================
reference            leads to
===================  ==========================================================================
``env:NAME``         the environment variable of that name
``file:PATH``        the file's content, without its last line break; only the owner may read
                     the file
``module:callable``  the result of the callable, for example from a vault or a cloud identity
===================  ==========================================================================
"""

from __future__ import annotations

import os
import pkgutil
import re
import stat
from urllib.parse import unquote

from export_queue.core.arguments import check_text
from export_queue.core.callables import check_runs, returned
from export_queue.core.errors import ExportQueueError, InvalidArgument, SecretNotFound

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_REFERENCE = re.compile(
    r"env:[A-Za-z_][A-Za-z0-9_]*"
    r"|file:/.+"
    rf"|(?!env:|file:){_IMPORT_PATH.pattern}"
)
_SECRET_IN_QUERY = re.compile(
    r"([?&;](?:(?:ssl_?)?password|passwd|pwd|(?:session_?)?token|secret(?:_?access)?(?:_?key)?|api_?key"
    r"|access_?key(?:_?id)?)=)[^&;]+",
    re.IGNORECASE,
)
_USER_IN_QUERY = re.compile(r"[?&;][^=&;]+=[^&;]*://[^/&;@]+@")
"""A URL in the query with a user before its host, such as the endpoint of an object store."""
_MAX_BYTES = 1 << 16
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def hide_secrets(url: str) -> str:
    """Return a URL whose query has stars instead of passwords."""
    return _SECRET_IN_QUERY.sub(r"\1***", url)


def is_reference(text: object) -> bool:
    """Return whether a value has the form of a reference; the reference is not resolved."""
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def resolve_secret(reference: str) -> str:
    """Return the secret that a reference leads to; it is never empty.

    :param reference: ``env:NAME``, ``file:/absolute/path`` or ``module:callable``.
    :raises InvalidArgument: the text is not a reference. The message does not show it, because it may be a secret.
    :raises SecretNotFound: the reference leads nowhere, or to a file that others may read.
    """
    if not is_reference(reference):
        raise InvalidArgument("a secret is named by env:NAME, file:/PATH or module:callable; found another text")
    if reference.startswith("env:"):
        secret = _from_environment(reference)
    elif reference.startswith("file:"):
        secret = _from_file(reference)
    else:
        secret = _from_callable(reference)
    if not secret:
        raise SecretNotFound(f"{reference} is empty")
    return secret


def _from_environment(reference: str) -> str:
    name = reference.removeprefix("env:")
    try:
        return os.environ[name]
    except KeyError:
        raise SecretNotFound(
            f"{reference}: the environment of this process has no variable {name}",
            hint="set it where the connection is opened: the worker, the Spark driver, each executor",
        ) from None


def _from_file(reference: str) -> str:
    path = reference.removeprefix("file:")
    try:
        with open(path, "rb") as file:
            # checks the open file, which is certainly the one that is read
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SecretNotFound(f"{reference} is not a regular file")
            if found.st_mode & _READABLE_BY_OTHERS:
                raise SecretNotFound(
                    f"{reference} is open to others than its owner (mode {stat.S_IMODE(found.st_mode):04o})",
                    hint="chmod 600 it; where a cluster mounts it, set the mount's mode to 0400",
                )
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SecretNotFound(f"{reference} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise SecretNotFound(f"{reference} holds more than {_MAX_BYTES} bytes: hardly a secret")
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretNotFound(f"{reference} is not UTF-8 text") from None


def _from_callable(reference: str) -> str:
    found = check_runs(import_object(reference, error=SecretNotFound), reference, error=SecretNotFound)
    try:
        secret: object = found()
    except Exception as error:
        # only its type: the text of a vault's error may contain the secret
        raise SecretNotFound(f"{reference} raised {type(error).__name__}") from None
    returned(secret, reference, error=SecretNotFound)
    if not isinstance(secret, str):
        raise SecretNotFound(f"{reference} returned {type(secret).__name__}, expected str")
    return secret


def check_import_path(path: str, *, error: type[ExportQueueError], hint: str | None = None) -> None:
    """Check that text has the form of an import path; nothing is imported."""
    if not _IMPORT_PATH.fullmatch(path):
        raise error(f'{path!r}: expected an import path "module:name"', hint=hint)


def import_object(path: str, *, error: type[ExportQueueError], hint: str | None = None) -> object:
    """Import an object.

    :param path: ``package.module:name`` or ``package.module:name.attribute``.
    :param error: class of the error if the path leads nowhere.
    :param hint: hint of that error; by default the hint of its class.
    """
    check_import_path(path, error=error, hint=hint)
    try:
        found: object = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as problem:
        raise error(f"{path} cannot be imported: {problem}", hint=hint) from problem
    return found


def has_password(text: str) -> bool:
    """Return whether text is a URL that contains a password."""
    _, mark, rest = text.partition("://")
    if not mark:
        return False
    host = re.split(r"[/?#\s]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    in_query = bool(_SECRET_IN_QUERY.search(text) or _USER_IN_QUERY.search(unquote(text)))
    if at:
        return bool(user.partition(":")[2]) or in_query
    # a password with an unquoted slash: the apparent port is not a number, and an @ follows
    port = host.partition(":")[2]
    broken = bool(port) and not port.isdigit() and not host.startswith("[") and "@" in rest
    return broken or in_query


def check_sink_name(name: str) -> None:
    """Check the name of a sink, which reports and errors show: it must be printable and contain no password."""
    check_text(name, what="the name of a sink")
    if has_password(name):
        raise InvalidArgument("the name of a sink: expected one without a password (what was found is not shown)")
    if not name.strip() or not name.isprintable():
        raise InvalidArgument(f"the name of a sink: expected text without control characters, found {name!r}")
