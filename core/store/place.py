"""The place of segments: a strict parser of the folder for all files of a store."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from export_queue.core.errors import InvalidArgument

_HINT = "'s3://bucket/folder', '/folder' or 'file:///folder', which all that write and drain can reach"
_CREDENTIALS = "credentials come from the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_OPTIONS = {
    "region": re.compile(r"[a-z0-9-]{1,40}"),
    "scheme": re.compile("https?"),
    "endpoint_override": re.compile(f"(?:https?://)?{_HOST}/?"),
    "tls_ca_file_path": re.compile(r"/[^\s?#]+"),
}
_EXPECTED = {
    "region": "a region such as eu-west-1",
    "scheme": "http or https",
    "endpoint_override": "host, host:port or http(s)://host:port, without keys and path",
    "tls_ca_file_path": "an absolute path without keys and passwords",
}


def parse_place(text: object) -> str:
    """Check a place of segments, and return its canonical form: an absolute path, or a URL of S3.

    Unknown options, fragments, and parts that could contain a key are refused. Messages show no part that may hold a
    secret.

    :raises InvalidArgument: the text names no place, or may hold a secret.
    """
    if not isinstance(text, str):
        raise _refused(f"expected text, found {type(text).__name__}")
    if not text.isprintable() or text != text.strip():
        raise _refused("expected text without control characters and without spaces around it")
    scheme, mark, rest = text.partition("://")
    match scheme.lower() if mark else "":
        case "":
            if text.startswith("/"):
                return _local(text)
        case "file":
            if rest.startswith("/"):
                return _local(_decoded(_without_query(rest)))
        case "s3" | "s3a":
            return _s3(rest)
    raise _refused(f"expected an absolute path, file:///path or s3://bucket/folder, found {_shown(text)}")


def _refused(what: str, hint: str = _HINT) -> InvalidArgument:
    return InvalidArgument(f"the place of segments: {what}", hint=hint)


def _shown(text: str) -> str:
    scheme, mark, _ = text.partition("://")
    if mark and re.fullmatch(r"[a-z][a-z0-9+.-]{0,9}", scheme):
        return f"the scheme {scheme!r}"
    if re.fullmatch(r"[\w.~-]*(?:/[\w.~-]+)*/?", text):
        return repr(text)
    return "something else (it is not shown: it may hold a secret)"


def _without_query(rest: str) -> str:
    if "?" in rest or "#" in rest:
        raise _refused("expected a path without '?' and '#'", "write %3F and %23 in a URL if they belong to the path")
    return rest


def _decoded(path: str) -> str:
    """Decode a path of a URL. An encoded slash is refused, since it would name another folder than it shows."""
    if re.search("%(?![0-9A-Fa-f]{2})|%2[Ff]", path):
        raise _refused("expected each '%' of the path to begin an encoded character other than a slash")
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise _refused("expected a path whose encoded characters are UTF-8") from None
    if not decoded.isprintable():
        raise _refused("expected a path without control characters")
    return decoded


def _local(path: str) -> str:
    return "/" + "/".join(_names(path))


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name]
    if any(name in (".", "..") for name in names):
        raise _refused("expected a path without '.' and '..'")
    if re.search(":.*@", path):  # a key may have slashes
        raise _refused("expected a path without keys and passwords (what was found is not shown)", _CREDENTIALS)
    return names


def _s3(rest: str) -> str:
    if "#" in rest:
        raise _refused("expected a URL without '#'", "write %23 if it belongs to the name of a folder")
    where, mark, query = rest.partition("?")
    bucket, _, path = where.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise _refused(
            "expected s3://bucket/folder with the name of a bucket alone (what was found is not shown)",
            f"a server is named by '?endpoint_override=host:port'; {_CREDENTIALS}",
        )
    decoded = _decoded(path)
    if "//" in f"/{decoded.rstrip('/')}":
        raise _refused("expected a path without empty names")
    folder = "".join(f"/{quote(name, safe='~')}" for name in _names(decoded))
    options = _options(query) if mark else {}
    shown = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in options.items())
    return f"s3://{bucket}{folder}" + (f"?{shown}" if shown else "")


def _options(query: str) -> dict[str, str]:
    known = ", ".join(_OPTIONS)
    hint = f"options are {known}; {_CREDENTIALS}"
    options: dict[str, str] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name not in _OPTIONS:
            shown = (
                repr(name) if re.fullmatch("[a-z_]{1,50}", name) and "=" in part else "another text (it is not shown)"
            )
            raise _refused(f"expected the options {known}, found {shown}", hint)
        if name in options:
            raise _refused(f"expected the option {name} once, found it twice", hint)
        decoded = _decoded(value.replace("%2F", "/").replace("%2f", "/"))
        if not _OPTIONS[name].fullmatch(decoded) or re.search(":.*@", decoded):
            raise _refused(f"option {name}: expected {_EXPECTED[name]} (what was found is not shown)", hint)
        options[name] = decoded.removesuffix("/")
    scheme, mark, _ = options.get("endpoint_override", "").partition("://")
    if mark and options.get("scheme", scheme) != scheme:
        raise _refused("expected one scheme, found another one in endpoint_override than in scheme", hint)
    return options
