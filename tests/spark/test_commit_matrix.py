"""Loads whose parts die at every step: all or nothing, once, and no file that a commit refers to is deleted (I3, I14).

For each kind of death one interface and one step, drawn anew in each run, or by ``EXPORT_QUEUE_SEED``; all of them if
``EXPORT_QUEUE_DRAW`` is ``all``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.spark.applications import ROWS, TASKS, Application, executor_of, executors, kill, marks, shadow_home
from tests.spark.loading import files, values
from tests.support.drawn import drawn
from tests.support.patience import AT_ONCE
from tests.support.waiting import wait_until

from export_queue import MemorySink, Store, drain, write_transactional
from export_queue.core.maintenance import maintain
from export_queue.core.segments import vacuum_segments
from export_queue.core.store import queries

EXPECTED = {b"k%d" % n: b"%d" % n for n in range(ROWS)}
TASK = ("before", "within", "written")
DRIVER = ("told", "staged", "committing", "committed")
STEPS = {
    "a task that fails once": TASK,
    "a task that fails for good": TASK,
    "a Python worker": TASK,
    "an executor": (*TASK, "others ended", "told", "staged", "committed"),
    "the connection": ("committing",),
    "the driver": (*TASK, "others ended", *DRIVER),
    "the application": (*TASK, "others ended", *DRIVER),
}
"""Where each of them dies: in the task of one partition, when all others have ended, or in a step of the commit."""
FACES = ("call", "data source")


def cases() -> Iterator[Any]:
    for kind, steps in STEPS.items():
        for face, step in drawn([(face, step) for face in FACES for step in steps], about=kind):
            yield pytest.param(face, kind, step, id=f"{face}-{kind}-{step}")


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """A server, whose locks hold a commit up in its middle."""
    return postgres_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def loads(store_url: str, tmp_path: Path, folder: Path) -> dict[str, Any]:
    """What an application is told of the store."""
    url = sa.make_url(store_url)
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(url.password or "")
    plain = url._replace(password=None).render_as_string()
    return {
        "url": plain,
        "secret": f"file:{password}",
        "segments": str(folder),
        "key": "night",
        "rows": ROWS,
        "tasks": TASKS,
    }


@pytest.fixture
def open_store(store_url: str, folder: Path) -> Callable[[], Store]:
    return lambda: Store.open(store_url, segments=str(folder))


Start = Callable[[], Application]


@pytest.fixture(scope="module")
def start(
    spark_home: Path, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """The application that runs, or a new one where it was killed."""
    root = tmp_path_factory.mktemp("applications")
    home = shadow_home(next((spark_home / "lib").glob("python*/site-packages/pyspark")), root / "home")
    started: list[Application] = []

    def one() -> Application:
        if not started or not started[-1].is_alive:
            environment = {**spark_environment, "SPARK_HOME": str(home)}
            started.append(Application("local-cluster[2,1,1024]", environment, root / str(len(started))))
        started[-1].wait_for_executors()
        return started[-1]

    yield one
    for application in started:
        application.close()


@contextlib.contextmanager
def commits_held_up(store_url: str) -> Iterator[Callable[[], list[int]]]:
    """Hold commits up while they write who reads their files; gives the server processes that wait."""
    with psycopg.connect(store_url.replace("+psycopg", "")) as holder:
        holder.execute("lock table export_queue.xq_segment_reader in share mode")

        def held() -> list[int]:
            with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as look:
                found = look.execute(
                    "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
                    "and query !~* 'lock table'"
                )
                return [row[0] for row in found]

        yield held


def clean(store: Store, folder: Path) -> None:
    """Let a day pass, and clean up; what a commit refers to stays, all else goes."""
    with store.database.begin() as work:
        queries.registrations.end_all(work)

    def is_clean() -> bool:
        maintain(store.database, patience=AT_ONCE)
        vacuum_segments(store.database, grace_seconds=0, zombie_seconds=0.0)
        named = set(store.bulk_files())
        assert named <= files(folder), "a file that a commit refers to was deleted"
        return files(folder) == named

    wait_until(is_clean, "files stay that nobody knows")


@pytest.mark.full("applications with executors; the same in local processes is tested anyway")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("face", "kind", "step"), cases())
def test_a_load_takes_effect_as_a_whole_or_not_at_all_and_once(
    orders: Store,
    start: Start,
    spark: Any,
    store_url: str,
    loads: dict[str, Any],
    folder: Path,
    face: str,
    kind: str,
    step: str,
    request: pytest.FixtureRequest,
) -> None:
    application = start()
    load = {"face": face, **loads}
    dies_alone = kind in ("a task that fails once", "a task that fails for good", "a Python worker")
    if dies_alone:
        act = "die" if kind == "a Python worker" else "raise"
        times = 99 if kind == "a task that fails for good" else 1
        case = application.plan(**{step: {"act": act, "partition": 0, "times": times}})
        application.ask(load)
    else:
        case = application.plan(**wait_at(step))
        with commits_held_up(store_url) if step == "committing" else contextlib.nullcontext() as held:
            application.ask(load)
            reach(application, case, step, held)
            if kind == "the connection":
                terminate(store_url, held())
            else:
                strike(application, kind, case, step)
            if not application.is_alive and step != "committing":
                assert values(orders) == (EXPECTED if step == "committed" else {})
        (case / "go").touch()

    is_over = kind in ("the driver", "the application")
    if is_over:
        assert not application.is_alive
        settle(store_url)
    else:
        answer = application.answer()
        assert (answer["error"] is None) == orders.idempotency("night").committed, answer
        expected = {"a task that fails for good": False, "the connection": orders.idempotency("night").committed}
        assert (answer["error"] is None) == expected.get(kind, True), answer
        assert kind != "a task that fails for good" or "planted" in answer["error"]
    attempts = [mark["attempt"] for mark in marks(case, step).values()] if step in TASK else []
    if attempts and not is_over:
        assert len(attempts) > 1, "nothing was repeated"

    committed = orders.idempotency("night").committed
    if is_over and step not in ("committing", "committed"):
        assert not committed
    request.node.user_properties.append(("covered", f"{'all' if committed else 'nothing'}, attempts {attempts}"))
    assert values(orders) == (EXPECTED if committed else {})
    clean(orders, folder)
    assert values(orders) == (EXPECTED if committed else {})

    rows = spark.createDataFrame([(f"k{n}", n) for n in range(ROWS)], "key string, value int")
    report = write_transactional(rows, orders, "orders", idempotency_key="night")
    assert (report.repeated, report.entries) == (committed, ROWS)
    assert values(orders) == EXPECTED
    sink = MemorySink()
    drained = drain(orders, "orders", sink, sink_name="memory")
    assert (drained.acknowledged, drained.left, drained.dead) == (ROWS, 0, 0)
    assert {key: document for (_, key), document in sink.records().items()} == EXPECTED
    clean(orders, folder)
    assert files(folder) == set()


def wait_at(step: str) -> dict[str, Any]:
    if step == "committing":
        return {}
    if step == "others ended":
        return {"before": {"act": "wait", "partition": 1}}
    return {step: {"act": "wait", "partition": 0 if step in TASK else None}}


def reach(application: Application, case: Path, step: str, held: Any) -> None:
    """Wait until the load is at the step."""
    if step == "committing":
        wait_until(held, "no commit is held up")
        return
    point = "before" if step == "others ended" else step
    wait_until(lambda: marks(case, point), f"the load does not come to {step}")
    if step == "others ended":
        application.wait_for_others(TASKS - 1)


def strike(application: Application, kind: str, case: Path, step: str) -> None:
    if kind == "the driver":
        application.kill_driver()
    elif kind == "the application":
        application.kill_all()
    elif step in TASK:
        (mark,) = marks(case, step).values()
        kill([executor_of(mark["pid"])])
    elif step == "others ended":
        (mark,) = marks(case, "before").values()
        kill(set(executors(application.id)) - {executor_of(mark["pid"])})
    else:
        kill(executors(application.id))


def terminate(store_url: str, servers: list[int]) -> None:
    with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as connection:
        for server in servers:
            connection.execute("select pg_terminate_backend(%s)", [server])


def settle(store_url: str) -> None:
    """Wait until the server has ended what a dead process had asked it for."""
    with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as look:
        busy = "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
        wait_until(lambda: look.execute(busy).fetchone() == (1,), "the server is busy")
