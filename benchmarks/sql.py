"""The SQL sink against the raw client: COPY straight into a table of the same shape, and ``executemany`` of others.

And against what a DAG without this library would call: ``insert_rows`` of Airflow's hook.
"""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import psycopg
import pymysql
import sqlalchemy as sa
from tests.support.mariadb import MariaDbServer
from tests.support.servers import PostgresServer

from benchmarks.measuring import Figure, Watch, alternate, processor_note, processor_of_each, rate, speed
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Claim, Operations, Sink, SqlSink

COPY, UPSERT = "raw COPY into the same table", "executemany of a guarded upsert, psycopg"
INSERT = "raw executemany INSERT"
INSERT_ROWS = "PostgresHook.insert_rows(replace=True) of Airflow"
COLUMNS = {"seq": "id, document, _rank, _deleted", "fence": "id, document"}
MARKS = {"seq": ", _rank bigint NOT NULL DEFAULT -1, _deleted boolean NOT NULL DEFAULT false", "fence": ""}
"""What a table has beside its data, by guard."""
DOCUMENT = b"x" * 100
CLAIM = Claim("q/1/0", 1)
Guard = Literal["seq", "fence"]
PHASES: tuple[tuple[str, Guard], ...] = (
    ("insert", "seq"),
    ("update", "seq"),
    ("stale", "seq"),
    ("insert", "fence"),
    ("update", "fence"),
)


def run(quick: bool) -> list[Figure]:
    records, repeats = (1_000, 1) if quick else (40_000, 7)
    with PostgresServer() as postgres, MariaDbServer() as mariadb, tempfile.TemporaryDirectory() as folder:
        os.environ |= {"AIRFLOW_HOME": folder, "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING"}
        places: list[Bench] = [
            OnPostgresql(postgres, records),
            OnMariadb(mariadb, records),
            OnSqlite(Path(folder), records),
        ]
        return [figure for place in places for figure in place.compare(repeats)]


class Bench:
    """Records in random order, in the sink's own batches; a fresh table each time."""

    kind: str
    url: str
    goals: ClassVar[dict[tuple[str, Guard, str], float]]
    """By phase, guard and baseline."""
    clock: ProcessorClock = staticmethod(no_server)

    def __init__(self, records: int) -> None:
        self.ids = [b"customer-%09d" % n for n in range(records)]
        random.Random(1).shuffle(self.ids)
        plain = [(record.decode(), DOCUMENT.decode()) for record in self.ids]
        self.rows = {"seq": [(*row, 3, False) for row in plain], "fence": plain}
        self.tables = (f"t{n}" for n in itertools.count())

    def sink(self, watch: Watch, phase: str, table: str, guard: Guard) -> None:
        opened = SqlSink(self.url, table=table, guard=guard)
        opened.admit(queue_id="q", store_id="s", fence=1)
        sink: Sink = opened
        if guard == "fence":
            (sink,) = opened.claim([CLAIM])
        if phase != "insert":
            self.deliver(sink, 1)
        with watch.running():
            self.deliver(sink, 2 if phase == "update" else 1)
        opened.close()

    def deliver(self, sink: Sink, seq: int) -> None:
        rows = sink.capabilities.batch_rows
        for start in range(0, len(self.ids), rows):
            part = self.ids[start : start + rows]
            n = len(part)
            sink.apply(Operations(["c"] * n, part, [DOCUMENT] * n, [seq] * n, range(n)))

    def drop(self, table: str) -> None:
        raise NotImplementedError

    def baselines(self, phase: str, guard: Guard) -> dict:
        raise NotImplementedError

    def compare(self, repeats: int) -> list[Figure]:
        figures: list[Figure] = []
        for phase, guard in PHASES:

            def own(watch: Watch, phase: str = phase, guard: Guard = guard) -> None:
                table = next(self.tables)
                self.sink(watch, phase, table, guard)
                self.drop(table)

            baselines = self.baselines(phase, guard)
            seconds = alternate({"sink": own, **baselines}, repeats=repeats, server=self.clock)
            for name in baselines:
                goal = self.goals.get((phase, guard, name))
                figures.append(
                    Figure(
                        bench="sql",
                        case=f"{self.kind}: {phase}" if guard == "seq" else f"{self.kind}, fence: {phase}",
                        ratio=speed(seconds, "sink", name),
                        better="higher",
                        goal=goal,
                        baseline=name,
                        repeats=repeats,
                        note="; ".join(
                            (
                                rate(seconds, "sink", len(self.ids), "records"),
                                processor_of_each(seconds, "sink", len(self.ids)),
                                processor_note(seconds, "sink", name),
                            )
                        ),
                    )
                )
        return figures


class OnPostgresql(Bench):
    kind = "PostgreSQL"
    goals: ClassVar = {
        ("insert", "seq", COPY): 0.65,
        ("update", "seq", COPY): 0.5,
        ("stale", "seq", COPY): 0.95,
        ("insert", "fence", COPY): 0.75,
        ("update", "fence", COPY): 0.55,
        ("insert", "seq", INSERT_ROWS): 3.5,
    }

    def __init__(self, server: PostgresServer, records: int) -> None:
        super().__init__(records)
        self.clock = of_server(server.pid)
        self.url = server.url()
        self.connection = psycopg.connect(self.url.replace("+psycopg", ""))

    def drop(self, table: str) -> None:
        self.connection.execute(f"DROP TABLE {table} CASCADE")
        self.connection.commit()

    def baselines(self, phase: str, guard: Guard) -> dict:
        found = {COPY: partial(self.copy, guard)}
        others = {UPSERT: self.upsert, INSERT_ROWS: self.insert_rows}
        return {**found, **others} if (phase, guard) == ("insert", "seq") else found

    def table(self, guard: Guard) -> str:
        table = next(self.tables)
        self.connection.execute(f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, document text{MARKS[guard]})')
        self.connection.commit()
        return table

    def copy(self, guard: Guard, watch: Watch) -> None:
        table, rows = self.table(guard), self.rows[guard]
        with watch.running():
            for start in range(0, len(rows), 10_000):
                with self.connection.cursor().copy(f"COPY {table} ({COLUMNS[guard]}) FROM STDIN") as copy:
                    for row in rows[start : start + 10_000]:
                        copy.write_row(row)
                self.connection.commit()
        self.drop(table)

    def upsert(self, watch: Watch) -> None:
        table, rows = self.table("seq"), self.rows["seq"]
        statement = (
            f"INSERT INTO {table} AS t ({COLUMNS['seq']}) VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
            "document = excluded.document, _rank = excluded._rank, _deleted = excluded._deleted "
            "WHERE t._rank < excluded._rank"
        )
        with watch.running():
            for start in range(0, len(rows), 10_000):
                self.connection.cursor().executemany(statement, rows[start : start + 10_000])
                self.connection.commit()
        self.drop(table)

    def insert_rows(self, watch: Watch) -> None:
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        os.environ["AIRFLOW_CONN_BENCH"] = self.url.replace("postgresql+psycopg", "postgres")
        hook = PostgresHook(postgres_conn_id="bench", log_sql=False)
        table, rows = self.table("seq"), self.rows["seq"]
        fields = COLUMNS["seq"].split(", ")
        with watch.running():
            hook.insert_rows(table, rows, fields, replace=True, replace_index="id")
        self.drop(table)


class OnMariadb(Bench):
    kind = "MariaDB"
    goals: ClassVar = {
        ("insert", "seq", INSERT): 1.0,
        ("update", "seq", INSERT): 0.9,
        ("insert", "fence", INSERT): 1.0,
        ("update", "fence", INSERT): 0.9,
    }

    def __init__(self, server: MariaDbServer, records: int) -> None:
        super().__init__(records)
        self.clock = of_server(server.pid)
        self.url = server.url(server.create_database())
        url = sa.make_url(self.url)
        self.connection = pymysql.connect(
            host=url.host, port=url.port or 0, user=url.username, password=str(url.password), database=url.database
        )

    def drop(self, table: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(f"DROP VIEW IF EXISTS {table}_live")
            cursor.execute(f"DROP TABLE {table}")

    def baselines(self, phase: str, guard: Guard) -> dict:
        return {INSERT: partial(self.insert, guard)}

    def insert(self, guard: Guard, watch: Watch) -> None:
        table, rows = next(self.tables), self.rows[guard]
        places = ", ".join(["%s"] * len(rows[0]))
        with self.connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table} (id varbinary(255) PRIMARY KEY, document longtext{MARKS[guard]})")
            with watch.running():
                for start in range(0, len(rows), 10_000):
                    cursor.executemany(
                        f"INSERT INTO {table} ({COLUMNS[guard]}) VALUES ({places})", rows[start : start + 10_000]
                    )
                    self.connection.commit()
        self.drop(table)


class OnSqlite(Bench):
    kind = "SQLite"
    goals: ClassVar = {
        ("insert", "seq", INSERT): 0.85,
        ("update", "seq", INSERT): 0.75,
        ("insert", "fence", INSERT): 0.8,
        ("update", "fence", INSERT): 0.85,
    }

    def __init__(self, folder: Path, records: int) -> None:
        super().__init__(records)
        self.path = folder / "bench.db"
        self.url = f"sqlite:///{self.path}"
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")

    def drop(self, table: str) -> None:
        self.connection.execute(f"DROP VIEW IF EXISTS {table}_live")
        self.connection.execute(f"DROP TABLE {table}")

    def baselines(self, phase: str, guard: Guard) -> dict:
        return {INSERT: partial(self.insert, guard)}

    def insert(self, guard: Guard, watch: Watch) -> None:
        table, rows = next(self.tables), self.rows[guard]
        places = ", ".join("?" * len(rows[0]))
        self.connection.execute(f"CREATE TABLE {table} (id text PRIMARY KEY, document text{MARKS[guard]})")
        with watch.running():
            for start in range(0, len(rows), 10_000):
                self.connection.execute("BEGIN IMMEDIATE")
                self.connection.executemany(
                    f"INSERT INTO {table} ({COLUMNS[guard]}) VALUES ({places})", rows[start : start + 10_000]
                )
                self.connection.execute("COMMIT")
        self.drop(table)
