"""Python and the packages: installed, and of a version that this library is tested with."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from export_queue.core.doctor.check import Check

DISTRIBUTION = "airflow-provider-export-queue"
_LINE = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*\(?([^;()]*)\)?(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")
_BOUND = re.compile(r"(>=|<|==)\s*(\d+(?:\.\d+)*)(\.\*)?")
_PARTS = 4
_HOSTS = ("apache-airflow", "pyspark")
"""Packages that this library is installed into: if they are there, their versions matter."""
_APART = ("pyspark", "pyspark-client")
"""Two packages that own the same files, in different versions."""


class Requirement(NamedTuple):
    """A package that this library needs, and the versions that it takes."""

    package: str
    versions: str
    extra: str | None
    """The extra that brings it; None for every install."""


def read_requirement(line: str) -> Requirement:
    """Read a line of a distribution's requirements, as this library writes them."""
    found = _LINE.match(line)
    assert found, line
    return Requirement(found[1], found[2].strip(), found[3])


def is_within(version: str, versions: str) -> bool:
    """Return whether a version fits bounds such as ``<4,>=3.2`` or ``==4.3.*``; a suffix such as ``rc1`` is ignored."""
    have = _numbers(version)
    for sign, bound, star in _BOUND.findall(versions):
        wanted = _numbers(bound)
        if star:
            length = len(bound.split("."))
            fits = have[:length] == wanted[:length]
        else:
            fits = {">=": have >= wanted, "<": have < wanted, "==": have == wanted}[sign]
        if not fits:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(found[0]) if (found := re.match(r"\d+", part)) else 0 for part in version.split(".")[:_PARTS]]
    return (*parts, *[0] * (_PARTS - len(parts)))


def judge_packages(
    requirements: Sequence[Requirement], installed: Mapping[str, str], *, extras: Collection[str]
) -> Iterator[Check]:
    """Compare what is installed with what is needed.

    :param installed: version of each installed package of the requirements.
    :param extras: the extras that are needed here. Packages of other extras may be missing.
    """
    fitting = {}
    for package, versions, extra in requirements:
        is_needed = extra is None or extra in extras
        if not is_needed and package not in _HOSTS:
            continue
        install = f"pip install '{DISTRIBUTION}" + (f"[{extra}]'" if extra else "'")
        if package not in installed:
            if is_needed:
                yield Check.error(package, f"not installed; needed: {versions}", fix=install)
        elif is_within(installed[package], versions):
            fitting[package] = installed[package]
        else:
            yield Check.warning(
                package,
                f"version {installed[package]} is installed; tested versions are {versions}",
                fix=f"{install} chooses a fitting one",
            )
    yield Check.ok("packages", ", ".join(f"{name} {version}" for name, version in sorted(fitting.items())))
    apart = {name: installed[name] for name in _APART if name in installed}
    if len(set(apart.values())) > 1:
        yield Check.warning(
            "pyspark",
            "two packages overwrite each other's files: " + ", ".join(map(" ".join, apart.items())),
            fix=f"install Spark in an environment of its own: pip install '{DISTRIBUTION}[spark]'",
        )


def examine_software(extras: Collection[str] = ()) -> Iterator[Check]:
    """Check Python and the installed packages.

    :param extras: the extras that are needed here, such as ``postgres``.
    """
    requirements = [*map(read_requirement, metadata.requires(DISTRIBUTION) or ())]
    shown = [one for one in requirements if one.extra not in _OF_DEVELOPERS]
    installed = {}
    for name in {*(one.package for one in shown), *_APART}:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    own = f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}"
    yield Check.ok("python", f"{platform.python_version()} on {platform.system()}, {own}")
    yield from judge_packages(shown, installed, extras=extras)


_OF_DEVELOPERS = ("demo", "test", "docs", "dev")
