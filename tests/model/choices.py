"""The steps of the machine, and what they are given."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from export_queue import Level

DAY = 24 * 3600.0

rows, columns = st.sampled_from([b"a", b"a", b"b"]), st.sampled_from([b"x", b"x", b"y"])
tables = st.sampled_from(["rows", "rows", "rows", "rows", "cells", "cells", "free", "brief"])
cells = st.tuples(tables, rows, columns)
flags = st.booleans()
processes, numbers = st.integers(0, 1), st.integers(0, 9)

SPANS: list[dict[str, Any]] = [{}, {"prefix": b"b"}, {"start": b"b"}, {"stop": b"b"}, {"columns": [b"x"]}, {"limit": 1}]
READS = {
    "get": (cells,),
    "get_many": (tables, st.lists(st.tuples(rows, columns), max_size=3)),
    "scan": (tables, st.sampled_from(SPANS), st.integers(1, 3), flags),
    "versions": (cells,),
    "level": (st.sampled_from(list(Level)),),
}
WRITES = {
    "set": (cells,),
    "delete": (cells,),
    "delete_row": (tables, rows),
    "add": (st.sampled_from(["k", "l"]), flags, flags),
    "notify": (rows,),
    "id": (),
}
WORK = READS | WRITES


def _weighted(names: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), *WORK[name]))


works = st.lists(_weighted([*WORK, "get", "set", "set", "set", "add"]), min_size=1, max_size=4)

CrashPlan = tuple[int, int, bool] | None
"""If not 0: at which SQL transaction the process dies, right after it has taken effect, or, where a server can be made
to do so, at which change the server ends the session in the middle of one. If 0: after how many moments the process
dies. At last, whether everything that is in progress then comes to its deadline."""
crashes: st.SearchStrategy[CrashPlan] = st.builds(
    lambda is_due, changes, moments, passes: (changes, moments, passes == 3) if is_due == 4 else None,
    st.integers(0, 4),
    st.sampled_from([0, 0, 0, 1, 1, 1, 2, 2, 3, 5]),
    st.sampled_from([*range(16), *range(40)]),
    st.integers(0, 3),
)

STEPS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "work": (
        6,
        {
            "number": numbers,
            "begin": st.tuples(
                st.sampled_from(["short", "short", "long", "read"]),
                st.sampled_from([30.0, 30.0, 1.0, 3600.0]),
                st.sampled_from([None, None, None, "t", "u"]),
                flags,
            ),
            "work": works,
            "then": st.sampled_from(["go on", "go on", "give away", "checkpoint"]),
        },
    ),
    "end": (4, {"number": numbers, "how": st.sampled_from(["commit", "commit", "commit", "commit again", "abort"])}),
    "run": (2, {"idempotency_key": st.sampled_from([None, "t", "u"]), "work": works}),
    "process_notifications": (2, {}),
    "drain": (1, {"number": numbers, "some": flags}),
    "hold_snapshot": (1, {}),
    "ask": (1, {"number": numbers}),
    "close_idempotency_key": (
        1,
        {"idempotency_key": st.sampled_from(["t", "u"]), "generation": st.sampled_from([None, 1, 2])},
    ),
    "time_passes": (
        3,
        {
            "seconds": st.sampled_from([*[0.001, 1.001, 31.0, 61.0] * 3, -1.0, 3601.0, -7200.0, DAY + 1, 40 * DAY]),
            "number": numbers,
        },
    ),
    "expire": (1, {}),
    "prune": (1, {"limit": st.sampled_from([1000, 1, 2])}),
    "maintain": (
        2,
        {"age": st.sampled_from([0.0, 0.0, 0.0, 3600.0]), "keep": st.sampled_from([(DAY, 30 * DAY), (1.0, 60.0)])},
    ),
}
"""Steps of a process: how often each is taken, and what it is given."""
ALWAYS = {"process": processes, "crash": crashes}
# One strategy: among several rules, hypothesis would leave some out of each example, which mostly need each other.
steps = st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name][1] | ALWAYS))
)
