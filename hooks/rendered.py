"""Templated arguments of tasks. Each accepts its type, its JSON and None, however Airflow renders templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from export_queue.core.arguments import given, mapping, required_text, text

Reader = Callable[..., Any]
"""Called with the rendered value, and with the argument's name as ``what=``."""


def optional(read: Reader, *, default: Any = None, **limits: Any) -> Reader:
    """Return a reader of an optional argument.

    :param default: replaces None.
    :param limits: further arguments of ``read``.
    """

    def read_given(value: Any, *, what: str) -> Any:
        found = given(value)
        return default if found is None else read(found, what=what, **limits)

    return read_given


def name_or(default: str) -> Reader:
    """Return a reader of a text that has a default."""
    return partial(text, default=default)


def settings(value: Any, *, what: str) -> dict[str, str] | None:
    """Read a mapping of names to texts, or its JSON; names with None are left out."""
    found = mapping(value, what=what)
    return None if found is None else {name: str(one) for name, one in found.items() if one is not None}


def described_sink(value: Any, *, what: str) -> Any:
    """Read a sink: a description, its JSON text, or an import path."""
    found = given(value)
    if isinstance(found, str) and not found.lstrip().startswith("{"):
        return text(found, what=what)
    return mapping(found, what=what) if isinstance(found, str) else found


SINK: Mapping[str, Reader] = {"sink_conn_id": text, "sink_options": mapping, "sink": described_sink}
"""The arguments that name a sink."""


def untouched(value: Any, *, what: str) -> Any:
    """Read an argument of Airflow itself; a template may have rendered None as text."""
    return given(value)


class RenderedTask(BaseOperator):
    """A task with templated arguments, which it reads after they are rendered."""

    readers: ClassVar[Mapping[str, Reader]]
    """How each templated argument is read."""

    def read_arguments(self) -> None:
        """Replace the rendered arguments by their values. A second call changes nothing.

        :raises InvalidArgument: an argument is not valid; the error names it.
        """
        for name, read in self.readers.items():
            setattr(self, name, read(getattr(self, name), what=name))

    def pre_execute(self, context: Any) -> None:
        """Store the addresses of the task's links, so that the UI shows them at once; Airflow does so at the end."""
        super().pre_execute(context)
        instance = context["ti"]
        for link in self.operator_extra_links:
            try:
                if address := link.get_link(self, ti_key=instance):
                    instance.xcom_push(link.xcom_key, address)
            except Exception as error:  # a link is no reason to fail
                self.log.warning("The link %r cannot be shown yet: %s", link.name, error)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        """Render texts to texts also in DAGs that render native objects: the name ``1_000`` is not a number."""
        texts = [name for name in template_fields if parent is self and _is_text(self.readers.get(name))]
        others = [name for name in template_fields if name not in texts]
        super()._do_render_template_fields(parent, others, context, jinja_env, seen_oids)
        chosen, self.render_template_as_native_obj = self.render_template_as_native_obj, False
        try:
            super()._do_render_template_fields(parent, texts, context, self.get_template_env(), seen_oids)
        finally:
            self.render_template_as_native_obj = chosen


def _is_text(read: Reader | None) -> bool:
    return getattr(read, "func", read) in (text, required_text)
