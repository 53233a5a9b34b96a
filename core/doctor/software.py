"""Python and the packages: installed, and of a version that this library is tested with."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from export_queue.core.doctor.check import Check

DISTRIBUTION = "airflow-provider-export-queue"
_HOSTS = ("apache-airflow", "pyspark")
"""Packages that this library is installed into: if they are there, their versions matter."""
_APART = ("pyspark", "pyspark-client")
"""Two packages that own the same files, in different versions."""


class Needed(NamedTuple):
    """A package that this library needs, and the versions that it takes."""

    package: str
    versions: SpecifierSet
    extra: str | None
    """The extra that brings it; None for every install."""


def read_needed(line: str, extras: Collection[str]) -> Needed:
    """Read a line of a distribution's requirements.

    :param extras: the extras of the distribution.
    """
    found = Requirement(line)
    brought_by = [one for one in extras if found.marker is not None and found.marker.evaluate({"extra": one})]
    return Needed(found.name, found.specifier, next(iter(brought_by), None))


def judge_packages(
    needed: Sequence[Needed], installed: Mapping[str, str], *, extras: Collection[str]
) -> Iterator[Check]:
    """Compare what is installed with what is needed.

    :param installed: version of each installed package of those.
    :param extras: the extras that are needed here. Packages of other extras may be missing.
    """
    fitting = {}
    for package, versions, extra in needed:
        is_needed = extra is None or extra in extras
        if not is_needed and package not in _HOSTS:
            continue
        install = f"pip install '{DISTRIBUTION}" + (f"[{extra}]'" if extra else "'")
        if package not in installed:
            if is_needed:
                yield Check.error(package, f"not installed; needed: {versions}", fix=install)
        elif versions.contains(installed[package], prereleases=True):
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
    known = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    needed = [read_needed(line, known) for line in metadata.requires(DISTRIBUTION) or ()]
    shown = [one for one in needed if one.extra not in _OF_DEVELOPERS]
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
