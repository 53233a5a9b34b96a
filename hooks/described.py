"""Descriptions of stores and sinks, with the environment variables that pass their secrets to other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True)
class Described(Generic[Spec]):
    """A description without secrets, and the values of the secrets to which it refers.

    :param spec: a :class:`StoreSpec` or :class:`SinkSpec`; its secrets are references such as ``env:NAME``.
    :param variables: values of the environment variables that these references name; never shown.
    """

    spec: Spec
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables of this process, and of the programs that it starts, during a block.

    Secrets are passed this way because, unlike operator fields, configuration and arguments, the environment is neither
    rendered, stored, logged nor shown in the list of processes.

    :param values: the variables; None unsets one.
    """
    before = {name: os.environ.get(name) for name in values}
    _set_variables(values)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
