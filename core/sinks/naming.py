"""Templates of the names under which sinks keep records and collections: keys, tables, indices (pure).

A field is written ``$id``, or ``${id}`` before a letter, a digit or ``_``; ``$$`` is a dollar sign. Braces have no
meaning, so that a template can stand in a template of Jinja.

Source: the syntax of Python's ``string.Template`` (PEP 292).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from export_queue.core.errors import SinkConfigurationError

RefuseName = Callable[[str], str | None]
"""Says why the sink cannot have a name."""

COLLECTION = "collection"
_DOLLAR = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^{}$]*)\}|)")
_BRACED = re.compile(r"(?<!\$)\{(id|collection)\}")
"""A field as other programs write it."""


def first_collection(queue_id: str) -> str:
    """Name the collection that a drain feeds, where its exporter names no other one: by the queue that is added to."""
    return queue_id.partition("/")[0]


def parts_of(template: str) -> list[tuple[str, str]]:
    """Split a template into texts and the fields that follow them; the last text is followed by ``""``."""
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
    """Write a template in its one normal form."""
    template = ""
    for (text, field), (after, _) in zip(parts, [*parts[1:], ("", "")], strict=True):
        is_apart = not re.match(r"[A-Za-z0-9_]", after)
        template += text.replace("$", "$$") + (field and (f"${field}" if is_apart else f"${{{field}}}"))
    return template


def fill(template: str, collection: str) -> str:
    """Put a collection into a template."""
    return "".join(text + (collection if field else "") for text, field in parts_of(template))


def is_fixed(template: str) -> bool:
    """Return whether a template makes one name of all collections."""
    return all(field != COLLECTION for _, field in parts_of(template))


def names_of(template: str) -> str:
    """Return the regular expression of the names that a template makes."""
    return "".join(re.escape(text) + (".+" if field else "") for text, field in parts_of(template))


def check_fields(template: str, allowed: Sequence[str], *, what: str) -> list[tuple[str, str]]:
    """Check the syntax of a template, and the names of its fields.

    :param what: what is named, for the message.
    :returns: its parts, see :func:`parts_of`.
    :raises SinkConfigurationError: another field, or a field that is written with braces alone.
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
    """Check a template of names.

    :param what: what is named, for the message.
    :returns: the template in its normal form.
    :raises SinkConfigurationError: another field than ``$collection``, or a name that the sink cannot have.
    """
    parts = check_fields(template, [COLLECTION], what=what)
    refused = refuse(fill(template, "c"))
    if refused:
        raise SinkConfigurationError(f"{what} template {template!r}: {refused}")
    return written(parts)


def name_collections(
    template: str, collections: Iterable[str], refuse: RefuseName
) -> tuple[dict[str, str], dict[str, str]]:
    """Name what keeps each collection.

    :returns: the name by collection, and why a collection is refused.
    """
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
