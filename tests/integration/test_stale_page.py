"""docs/stale.md as somebody on call follows it: from an alert, or a line of ``status``, to the cause and the cure."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.alerts import fired_alerts
from tests.support.command_line import run_cli
from tests.support.pages import DOCS, assert_tested, blocks_of, rows_of
from tests.support.waiting import PATIENCE, wait_until

from export_queue import RegistrationLost, SinkSpec, Store, drain
from export_queue.core.store import schema

pytestmark = pytest.mark.one_store("the page says the same about each store")

PAGE = "stale.md"
READER = "products/search"
TWO_WORDS = ("dead", "transactions")
"""Groups of commands: the second word names the command."""
MOST_COMMANDS = 4

Prices = Callable[[], dict[str, int]]

HERE = "integration/test_stale_page.py"
JOURNEYS = "airflow/test_journeys.py"
TESTS = {
    "1. Find the reader and its problem": {
        "`entries`, and an error as `last_drain`": (
            JOURNEYS,
            "a_stopped_sink_is_found_from_the_alert_with_two_commands",
        ),
        "`entries`, and a `last_drain` long ago": (
            JOURNEYS,
            "a_copy_that_nobody_feeds_is_found_from_the_alert_with_one_command",
        ),
        "`entries`, and a recent `last_drain` that is `ok`": (
            HERE,
            "drains_that_do_not_keep_up_are_found_in_the_reports_and_divided",
        ),
        "`entries`, and `SinkLostData`": (HERE, "a_sink_that_lost_its_data_is_readmitted_and_loaded_again"),
        "`entries`, and `LockNotAvailable`": (HERE, "a_drain_that_holds_the_queue_is_named_and_ended"),
        "`dead`": (JOURNEYS, "a_refused_entry_is_found_mended_and_proven_in_the_order_of_the_page"),
        "`first_load` that is `missing`": (HERE, "a_reader_without_its_first_load_gets_it"),
        "`incomplete`": (HERE, "a_sink_that_lacks_a_dropped_entry_is_repaired_and_declared_complete"),
        "`last_comparison` with differences": (HERE, "a_sink_that_differs_is_repaired"),
        "none of these": (HERE, "a_change_that_nobody_has_added_is_found_by_its_key"),
    },
    "3. Look at refused entries": {
        "a wrong value": (JOURNEYS, "a_refused_entry_is_found_mended_and_proven_in_the_order_of_the_page"),
        "the mapping, the table or the exporter is wrong": (HERE, "letters_of_a_wrong_table_are_retried"),
    },
    "4. Ask about one record": {
        "`pending: 1`, or more": (HERE, "a_change_that_is_pending_is_drained"),
        "`dead letters: 1`, or more": (HERE, "letters_of_a_wrong_table_are_retried"),
        "`exported: yes`": (HERE, "a_record_that_somebody_has_overwritten_in_the_sink_is_repaired"),
        "`staged, not committed`": (HERE, "a_change_that_is_not_committed_yet_is_found_by_its_transaction"),
        "`last commit: none on record`": (HERE, "a_change_that_nobody_has_added_is_found_by_its_key"),
    },
}
"""The test of each row of the page."""


class OnCall:
    """Somebody who runs only commands that the page names, or what they have read since.

    :param url: of the store.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._read = (DOCS / PAGE).read_text("utf-8")
        self._commands = 0
        assert "at most four of the commands" in " ".join(self._read.split())

    def is_alerted(self, name: str) -> None:
        """Read an alert, whose rule must have fired."""
        self._read += "\n".join(self._alerts()[name].values())

    def open(self, page: str) -> None:
        """Follow a link to another page."""
        assert re.search(rf"\]\({re.escape(page)}[)#]", self._read), f"nothing that was read leads to {page}"
        self._read += (DOCS / page).read_text("utf-8")

    def run(self, command: str, *, status: int = 0) -> str:
        """Run a command that something has named, with options that something has named, and return what it prints."""
        program, *words = shlex.split(command)
        name = " ".join([program, *words[: 1 + (words[0] in TWO_WORDS)]])
        for text in (name, *(word for word in words if word.startswith("--"))):
            assert re.search(rf"(?<![\w-]){text}(?![\w-])", self._read), f"nothing that was read names {text!r}"
        self._commands += 1
        told = run_cli(*words, url=self._url, status=status, complaint=False)
        self._read += told
        return told

    def block(self, heading: str, number: int = 0) -> str:
        """Return a block of the page."""
        return [block.text for block in blocks_of(PAGE, "console") if block.heading.startswith(heading)][number]

    def status(self, reader: str = READER) -> tuple[dict[str, str], str]:
        """Run the command of step 1; return the cells of the reader's line, and everything that was printed."""
        told = self.run(self.block("1."))
        return _cells(told, "queue", reader), told

    def is_well(self) -> None:
        """Check that the cure took few commands, and has cured: no alert, nothing pending, no differences."""
        assert 0 < self._commands <= MOST_COMMANDS
        verify = self.block("5.").splitlines()[0]
        assert "no differences" in run_cli(*shlex.split(verify)[1:], url=self._url)
        line = _cells(run_cli("status", url=self._url), "queue", READER)
        assert (line["entries"], line["dead"], line.get("incomplete", "")) == ("0", "0", "")
        assert self._alerts().keys() <= {"ExportQueueNotCleanedUp"}

    def _alerts(self) -> dict[str, dict[str, str]]:
        return fired_alerts(run_cli("metrics", url=self._url))


def _table(text: str) -> list[dict[str, str]]:
    (names,) = [line for line in text.splitlines() if line.startswith("┃")]
    columns = [cell.strip() for cell in names.strip("┃").split("┃")]
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [dict(zip(columns, map(str.strip, line.strip("│").split("│")), strict=True)) for line in lines]


def _cells(text: str, column: str, value: str) -> dict[str, str]:
    (line,) = [line for line in _table(text) if line[column] == value]
    return line


def _row(problem: str) -> list[str]:
    """Return the row of step 1 about a problem."""
    (row,) = [row for row in rows_of(PAGE, "1. Find the reader and its problem") if problem in row[0]]
    return row


@pytest.fixture
def sink(tmp_path: Path) -> SinkSpec:
    return SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"})


@pytest.fixture
def products(store: Store, sink: SinkSpec) -> Store:
    """A store with one reader, whose sink has one record."""
    store.configure_queue("products", buckets=4, buckets_per_range=1, state=True, subscriptions=["search"])
    add(store, "1", 5)
    drain(store, READER, sink)
    return store


@pytest.fixture
def on_call(products: Store, store_url: str, sink: SinkSpec, monkeypatch: pytest.MonkeyPatch) -> OnCall:
    monkeypatch.setenv("EXPORT_QUEUE_SINK", str(sink.options["url"]))
    return OnCall(store_url)


@pytest.fixture
def copies(on_call: OnCall, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The database of the sink, for people who write there by hand."""
    with closing(sqlite3.connect(tmp_path / "copies.db", isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def prices(tmp_path: Path) -> Prices:
    """Read what programs see in the sink."""

    def read() -> dict[str, int]:
        with closing(sqlite3.connect(tmp_path / "copies.db")) as connection:
            found = connection.execute("select id, document from products_live").fetchall()
        return {key: json.loads(document)["price"] for key, document in found}

    return read


def add(store: Store, key: str, price: int | None) -> None:
    """Add an entry; None deletes the record."""
    store.run(lambda tx: tx.queue("products").add(key, price and {"price": price}))


# -- 1. Find the reader and its problem --------------------------------------------------------------------------------


def test_drains_that_do_not_keep_up_are_found_in_the_reports_and_divided(
    on_call: OnCall, products: Store, sink: SinkSpec, prices: Prices
) -> None:
    keys = iter(map(str, range(100, 200)))

    def deliver_while_twice_as_much_is_added() -> None:
        new = [next(keys) for _ in range(2 * sum(unit.entries for unit in products.backlog(READER)))]

        def grow(_: object) -> None:
            while new:
                add(products, new.pop(), 1)

        drain(products, READER, sink, on_progress=grow)

    for key in ("2", "3"):
        add(products, key, 1)
    for _ in range(2):
        deliver_while_twice_as_much_is_added()
    with products.database.begin() as work:  # sequences begin with the time
        entry, number = schema.entry, products.queue(READER).number
        pending = work.connection.execute(sa.select(entry.c.seq).where(entry.c.queue_number == number)).scalars().all()
        older = entry.update().where(entry.c.seq.in_(pending)).values(seq=entry.c.seq - 3600 * 10**9)
        assert work.connection.execute(older).rowcount == 2 * len(pending) == 16, "the reader's and the state's"

    on_call.is_alerted("ExportQueueStale")
    line, _ = on_call.status()
    assert line["entries"] == "8"
    assert line["last_drain"].endswith(" ok")
    reports = _table(on_call.run("export-queue reports products/search"))
    assert [(one["acknowledged"], one["waiting"]) for one in reports] == [("4", "8"), ("2", "4"), ("1", "0")]
    assert all(float(one["seconds"]) > 0 for one in reports)

    on_call.open("drains.md")
    told = [on_call.run(f"export-queue drain products/search --range {part}") for part in ("0:2", "2:4")]
    delivered = [int(number) for one in told for number in re.findall(r"(\d+) acknowledged", one)]
    assert min(delivered) > 0
    assert sum(delivered) == 8
    on_call.is_well()
    assert len(prices()) == 15


@pytest.mark.parametrize("loss", ["emptied", "restored from a backup"])
def test_a_sink_that_lost_its_data_is_readmitted_and_loaded_again(
    on_call: OnCall, products: Store, store_url: str, sink: SinkSpec, tmp_path: Path, prices: Prices, loss: str
) -> None:
    assert loss in _row("SinkLostData")[1]
    file, backup = tmp_path / "copies.db", tmp_path / "backup.db"
    shutil.copyfile(file, backup)
    add(products, "2", 6)
    add(products, "1", None)
    drain(products, READER, sink)
    if loss == "emptied":
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("delete from products")
    else:
        shutil.copyfile(backup, file)
    add(products, "3", 7)
    run_cli("drain", READER, url=store_url, status=1)

    on_call.is_alerted("ExportQueueDrainFails")
    line, told = on_call.status()
    assert line["entries"] == "1"
    assert line["last_drain"].endswith(" SinkLostData")
    on_call.open("sinks/lost-data.md")
    assert ("empty it first" in told) == (loss != "emptied"), "the hint tells the one from the other"
    if loss != "emptied":
        file.unlink()
    on_call.run(f"export-queue readmit products/search {sink.options['url']}")
    on_call.run("export-queue first-load products/search")
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"2": 6, "3": 7}


HOLDER = """
import signal, sys, time
from pathlib import Path
from export_queue import SinkSpec, Store, drain

store, sink, begun, may_end = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

def stand_still(_):
    Path(begun).touch()
    while not Path(may_end).exists():
        time.sleep(0.02)

with Store.open(store) as opened:
    drain(opened, "products/search", SinkSpec("sql", {"url": sink}), chunk_rows=1, on_progress=stand_still)
"""
"""A drain that stands still in the middle of a unit: while the first entry is reported, the second one is removed."""


@pytest.mark.parametrize("cure", ["wait", "end them"])
def test_a_drain_that_holds_the_queue_is_named_and_ended(
    on_call: OnCall, products: Store, store_url: str, sink: SinkSpec, tmp_path: Path, prices: Prices, cure: str
) -> None:
    assert cure in _row("LockNotAvailable")[2]
    for price in (6, 7, 8):
        add(products, "1", price)
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    program = [sys.executable, "-P", "-c", HOLDER, store_url, str(sink.options["url"]), str(begun), str(may_end)]
    with subprocess.Popen(program) as holder:
        try:
            wait_until(begun.exists, "the holder has delivered nothing")
            add(products, "1", 9)
            run_cli("drain", READER, "--lock-timeout", "0", url=store_url, status=75)

            on_call.is_alerted("ExportQueueDrainFails")
            line, told = on_call.status()
            assert int(line["entries"]) > 0
            assert line["last_drain"].endswith(" LockNotAvailable")
            assert "hint: " in told
            (lock,) = _table(on_call.run("export-queue locks products/search"))
            assert lock["state"] == "held"
            _, process, _ = lock["task"].split("/")
            on_call.open("locks.md")
            if cure == "wait":
                may_end.touch()
                assert holder.wait(PATIENCE) == 0
            else:
                os.kill(int(process), signal.SIGTERM)
                assert holder.wait(PATIENCE) == 143
        finally:
            holder.kill()
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 9}


def _add_the_reader_again(store: Store) -> None:
    """Let the reader lack its first load; another one keeps the queue from having none."""
    store.subscribe("products", "cache")
    store.waive_first_load("products/cache")
    store.unsubscribe("products", "search")
    store.subscribe("products", "search")


def test_a_reader_without_its_first_load_gets_it(
    on_call: OnCall, products: Store, tmp_path: Path, prices: Prices
) -> None:
    _add_the_reader_again(products)
    (tmp_path / "copies.db").unlink()
    add(products, "2", 6)

    on_call.is_alerted("ExportQueueFirstLoadMissing")
    line, _ = on_call.status()
    assert line["first_load"] == "missing"
    on_call.run("export-queue first-load products/search")
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 6}


def test_a_first_load_that_waits_for_a_transaction_names_and_aborts_it(
    on_call: OnCall, products: Store, store_url: str, prices: Prices
) -> None:
    begun = products.begin()  # by a program that is gone
    _add_the_reader_again(products)
    told = run_cli("first-load", READER, "--settle-timeout", "0", url=store_url, status=75)

    assert "TransactionsInProgress" in told
    (line,) = _table(on_call.run("export-queue transactions list"))
    on_call.run(f"export-queue transactions abort {line['transaction']}")
    on_call.run("export-queue first-load products/search")
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5}
    with pytest.raises(RegistrationLost):
        products.commit(begun)


def test_a_sink_that_lacks_a_dropped_entry_is_repaired_and_declared_complete(
    on_call: OnCall, products: Store, store_url: str, copies: sqlite3.Connection, prices: Prices
) -> None:
    _refuse_one_record(copies)
    add(products, "2", 6)
    run_cli("drain", READER, url=store_url, status=1)
    run_cli("dead", "drop", READER, "--all", url=store_url)
    copies.execute("drop trigger refuses")

    on_call.is_alerted("ExportQueueSinkIncomplete")
    line, _ = on_call.status()
    assert line["incomplete"] == "True"
    assert "were dropped" in line["marks"]
    assert "with `--repair`" in _row("`incomplete`")[2]
    verify, complete = on_call.block("5.").splitlines()
    assert "1 repaired" in on_call.run(f"{verify} --repair")
    on_call.run(complete)
    on_call.is_well()
    assert prices() == {"1": 5, "2": 6}


def test_a_sink_that_differs_is_repaired(
    on_call: OnCall, products: Store, store_url: str, copies: sqlite3.Connection, prices: Prices
) -> None:
    add(products, "2", 6)
    run_cli("drain", READER, url=store_url)
    copies.execute("delete from products where id = '1'")
    run_cli("verify", READER, url=store_url, status=1)

    on_call.is_alerted("ExportQueueCopyDiffers")
    line, _ = on_call.status()
    assert line["last_comparison"].endswith(" 1 difference")
    assert "with `--repair`" in _row("`last_comparison`")[2]
    assert "1 repaired" in on_call.run(f"{on_call.block('5.').splitlines()[0]} --repair")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 6}


# -- 3. Look at refused entries ----------------------------------------------------------------------------------------


def _refuse_one_record(copies: sqlite3.Connection) -> None:
    """Make the sink's table wrong: it takes everything but the record 2."""
    copies.execute(
        "create trigger refuses before insert on products when new.id = '2' begin select raise(abort, 'no 2'); end"
    )


def test_letters_of_a_wrong_table_are_retried(
    on_call: OnCall, products: Store, store_url: str, copies: sqlite3.Connection, prices: Prices
) -> None:
    _refuse_one_record(copies)
    add(products, "2", 6)
    run_cli("drain", READER, url=store_url, status=1)

    on_call.is_alerted("ExportQueueDeadLetters")
    assert "dead letters: 1\n" in on_call.run(on_call.block("4."))
    assert "no 2" in on_call.run(on_call.block("3."))
    copies.execute("drop trigger refuses")
    on_call.run("export-queue dead retry products/search")
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 6}


# -- 4. Ask about one record -------------------------------------------------------------------------------------------


def _has_none_of_these(line: dict[str, str]) -> bool:
    """Return whether only the last row of step 1 is that of a reader."""
    is_ok = line["last_drain"].endswith(" ok") and line["entries"] == line["dead"] == "0"
    return is_ok and not line.keys() & {"first_load", "incomplete", "last_comparison"}


def test_a_change_that_nobody_has_added_is_found_by_its_key(on_call: OnCall, prices: Prices) -> None:
    line, _ = on_call.status()
    assert _has_none_of_these(line)
    assert "last commit: none on record" in on_call.run(on_call.block("4."))
    on_call.run(on_call.block("3.", 1).splitlines()[0])
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 7}


def test_a_change_that_is_not_committed_yet_is_found_by_its_transaction(
    on_call: OnCall, products: Store, prices: Prices
) -> None:
    with products.transaction(long=True) as program:
        program.queue("products").add("2", {"price": 7})
        program.flush()
        line, _ = on_call.status()
        assert _has_none_of_these(line)
        assert "staged, not committed" in on_call.run(on_call.block("4."))
        (found,) = _table(on_call.run("export-queue transactions list"))
        assert found["transaction"] == str(program.id)
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 7}


def test_a_change_that_is_pending_is_drained(on_call: OnCall, products: Store, prices: Prices) -> None:
    add(products, "2", 7)

    assert "pending: 1\n" in on_call.run(on_call.block("4."))
    line, _ = on_call.status()
    assert line["entries"] == "1"
    on_call.run("export-queue drain products/search")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 7}


def test_a_record_that_somebody_has_overwritten_in_the_sink_is_repaired(
    on_call: OnCall, products: Store, store_url: str, copies: sqlite3.Connection, prices: Prices
) -> None:
    add(products, "2", 7)
    run_cli("drain", READER, url=store_url)
    copies.execute("""update products set document = '{"price":8}' where id = '2'""")

    line, _ = on_call.status()
    assert _has_none_of_these(line)
    assert "exported: yes" in on_call.run(on_call.block("4."))
    verify = on_call.block("5.").splitlines()[0]
    assert "1 different" in on_call.run(verify, status=1)
    on_call.run(f"{verify} --repair")
    on_call.is_well()
    assert prices() == {"1": 5, "2": 7}


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", TESTS)
def test_each_row_of_the_page_about_stale_copies_has_a_test(heading: str) -> None:
    expected = TESTS[heading]
    rows = rows_of(PAGE, heading)
    assert [row[0] for row in rows] == list(expected)
    assert all(row[-1] for row in rows), "nobody on call is left without a next step"
    assert_tested(expected.values())
