"""References: to secrets, and to objects by import path, and how they are followed.

A password never travels: what is stored, sent to Spark or shown is a reference, and the process that
opens a connection follows it.

===================  ==========================================================================
reference            leads to
===================  ==========================================================================
``env:NAME``         the environment variable of that name
``file:PATH``        the file's content, without its last line break; nobody but the owner may
                     read the file
``module:callable``  what the callable returns: a vault, a cloud identity
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
"""A URL within the query, with a name in front of its host, as an endpoint of an object store may have it."""
_MAX_BYTES = 1 << 16
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def hide_secrets(url: str) -> str:
    """Return a URL with stars in the place of the passwords of its query."""
    return _SECRET_IN_QUERY.sub(r"\1***", url)


def is_reference(text: object) -> bool:
    """Tell whether a value has the form of a reference; whether it leads anywhere is not looked at."""
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def is_import_path(text: str) -> bool:
    """Tell whether a text has the form of an import path; whether it leads anywhere is not looked at."""
    return _IMPORT_PATH.fullmatch(text) is not None


def resolve_secret(reference: str) -> str:
    """Follow a reference to its secret.

    :param reference: ``env:NAME``, ``file:/absolute/path`` or ``module:callable``.
    :returns: the secret; never empty.
    :raises InvalidArgument: the text is no reference. It is not repeated in the message: it may be a secret.
    :raises SecretNotFound: the reference leads nowhere, or to something that others may read.
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
            # asked of the open file, so that it is the one that is read
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
        # only its type: the text of an error that a vault raised may hold what was asked for
        raise SecretNotFound(f"{reference} raised {type(error).__name__}") from None
    returned(secret, reference, error=SecretNotFound)
    if not isinstance(secret, str):
        raise SecretNotFound(f"{reference} returned {type(secret).__name__}, expected str")
    return secret


def check_import_path(path: str, *, error: type[ExportQueueError], hint: str | None = None) -> None:
    """Refuse what is no import path, wherever it may lead; see :func:`import_object`."""
    if not _IMPORT_PATH.fullmatch(path):
        raise error(f'{path!r}: expected an import path "module:name"', hint=hint)


def import_object(path: str, *, error: type[ExportQueueError], hint: str | None = None) -> object:
    """Find what an import path names.

    :param path: ``package.module:name`` or ``package.module:name.attribute``.
    :param error: the class of the error that is raised where the path leads nowhere.
    :param hint: what that error advises; without one the hint of its class.
    """
    check_import_path(path, error=error, hint=hint)
    try:
        found: object = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as problem:
        raise error(f"{path} cannot be imported: {problem}", hint=hint) from problem
    return found


def has_password(text: str) -> bool:
    """Tell whether a text is a URL with a password in it."""
    _, mark, rest = text.partition("://")
    if not mark:
        return False
    host = re.split(r"[/?#\s]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    in_query = bool(_SECRET_IN_QUERY.search(text) or _USER_IN_QUERY.search(unquote(text)))
    if at:
        return bool(user.partition(":")[2]) or in_query
    # a password with an unquoted slash: what looks like the port is none, and an @ follows later
    port = host.partition(":")[2]
    broken = bool(port) and not port.isdigit() and not host.startswith("[") and "@" in rest
    return broken or in_query


def check_sink_name(name: str) -> None:
    """Check the name of a sink, which reports and errors show to everybody.

    :raises InvalidArgument: it is no text, or one that is not to be shown.
    """
    check_text(name, what="the name of a sink")
    if has_password(name):
        raise InvalidArgument("the name of a sink: expected one without a password (what was found is not shown)")
    if not name.strip() or not name.isprintable():
        raise InvalidArgument(f"the name of a sink: expected text without control characters, found {name!r}")
