"""Templates of the names of keys, tables and indices in sinks (pure).

A field is written ``$id``, or ``${id}`` before a letter, a digit or ``_``. ``$$`` is a dollar sign. Braces alone have
no meaning, so that a Jinja template can contain such a template.

Source: the syntax of Python's ``string.Template`` (PEP 292).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from export_queue.core.errors import SinkConfigurationError

RefuseName = Callable[[str], str | None]
"""Returns why the sink cannot have a name; None if it can."""

COLLECTION = "collection"
_DOLLAR = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^{}$]*)\}|)")
_BRACED = re.compile(r"(?<!\$)\{(id|collection)\}")
"""A field in the notation of other programs."""


def first_collection(queue_id: str) -> str:
    """Return the default collection of a drain: the queue's id, without the name of a subscription."""
    return queue_id.partition("/")[0]


def parts_of(template: str) -> list[tuple[str, str]]:
    """Split a template into pairs of a text and the field after it. The last field is ``""``."""
    parts, text, end = [], "", 0
    for found in _DOLLAR.finditer(template):
        text += template[end : found.start()]
        end = found.end()
        if found[1]:
            text += "$"
        else:
            parts.append((text, found[2] or found[3] or "$"))
            text = ""
    return [*parts, (text + template[end:], "")]


def written(parts: Sequence[tuple[str, str]]) -> str:
    """Return a template in its normal form."""
    template = ""
    for (text, field), (after, _) in zip(parts, [*parts[1:], ("", "")], strict=True):
        is_apart = not re.match(r"[A-Za-z0-9_]", after)
        template += text.replace("$", "$$") + (field and (f"${field}" if is_apart else f"${{{field}}}"))
    return template


def fill(template: str, collection: str) -> str:
    """Fill a collection into a template."""
    return "".join(text + (collection if field else "") for text, field in parts_of(template))


def is_fixed(template: str) -> bool:
    """Return whether a template gives all collections the same name."""
    return all(field != COLLECTION for _, field in parts_of(template))


def names_of(template: str) -> str:
    """Return a regular expression that matches the names of a template."""
    return "".join(re.escape(text) + (".+" if field else "") for text, field in parts_of(template))


def check_fields(template: str, allowed: Sequence[str], *, what: str) -> list[tuple[str, str]]:
    """Check the syntax and the fields of a template.

    :param what: what the template names, for the message.
    :returns: its parts; see :func:`parts_of`.
    :raises SinkConfigurationError: a field is not allowed, or is written with braces alone.
    """
    parts = parts_of(template)
    if any(_BRACED.search(text) for text, _ in parts):
        plain = _BRACED.sub(r"${\1}", template.replace("{{", "{").replace("}}", "}"))
        raise SinkConfigurationError(
            f"{what} template {template!r}: a field is written $id or ${{id}}, braces alone are text",
            hint=f"write {written(parts_of(plain))}",
        )
    if unknown := [field for _, field in parts[:-1] if field not in allowed]:
        known = " and ".join(f"${field}" for field in allowed)
        found = ", ".join(field if field == "$" else f"${field}" for field in unknown)
        raise SinkConfigurationError(
            f"{what} template {template!r}: expected {known}, found {found}",
            hint=f"before a letter, a digit or _ write ${{{allowed[0]}}}; a dollar sign of the name itself is $$",
        )
    return parts


def check_template(template: str, refuse: RefuseName, *, what: str) -> str:
    """Check a template, and return its normal form.

    :param what: what the template names, for the message.
    :raises SinkConfigurationError: it has a field other than ``$collection``, or the sink cannot have the names.
    """
    parts = check_fields(template, [COLLECTION], what=what)
    refused = refuse(fill(template, "c"))
    if refused:
        raise SinkConfigurationError(f"{what} template {template!r}: {refused}")
    return written(parts)


def name_collections(
    template: str, collections: Iterable[str], refuse: RefuseName
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the name of each collection, and the reasons why collections are refused."""
    names: dict[str, str] = {}
    refused: dict[str, str] = {}
    for collection in collections:
        name = fill(template, collection)
        reason = refuse(name)
        if reason:
            refused[collection] = reason
        else:
            names[collection] = name
    return names, refused
