"""The cache of compiled statements that all engines of the tests share."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

TABLE = sa.table("t", sa.column("a"))


def test_engines_share_what_one_of_them_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    make = SQLCompiler.__init__

    def init(compiler: SQLCompiler, *arguments: object, **options: object) -> None:
        make(compiler, *arguments, **options)  # type: ignore[arg-type]
        compiled.append(str(compiler))

    monkeypatch.setattr(SQLCompiler, "__init__", init)
    for number in range(3):
        engine = sa.create_engine("sqlite://")
        with engine.begin() as connection:
            connection.exec_driver_sql("create table t (a int)")
            connection.execute(sa.insert(TABLE).values(a=number))
            assert connection.execute(sa.select(TABLE.c.a).where(TABLE.c.a == number)).scalars().all() == [number]
            _ = engine.dialect.get_isolation_level_values(connection.connection.dbapi_connection)
        engine.dispose()
    assert [text.split()[0] for text in compiled if text] == ["INSERT", "SELECT"]


def test_dialects_of_other_settings_share_nothing() -> None:
    found = []
    for paramstyle in ("qmark", "named"):
        engine = sa.create_engine("sqlite://", paramstyle=paramstyle)
        sent: list[str] = []
        sa.event.listen(engine, "before_cursor_execute", lambda *call, sent=sent: sent.append(call[2]))
        with engine.begin() as connection:
            connection.execute(sa.select(sa.literal(7).label("n")))
        engine.dispose()
        found += sent
    assert found == ["SELECT ? AS n", "SELECT :param_1 AS n"]
