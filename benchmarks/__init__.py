"""Benchmarks: each compares with a named baseline in the same run.

A module here is a benchmark if it has a function ``run(quick: bool) -> list[Figure]``; its name is the
benchmark's name. ``python -m benchmarks [NAME ...] [--quick] [--json]`` from the repository's root.
"""
