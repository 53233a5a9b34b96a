"""The streams of ``docs/streaming.md``: each row of a source once in the queue, whenever a driver is killed (I14)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.spark import stream_main
from tests.spark.conftest import is_running
from tests.support.waiting import PATIENCE, wait_until

from export_queue import MemorySink, Store, drain
from export_queue.core.spark.job import QUICK_CONF
from export_queue.core.spark.worker_daemon import MODULE

HERE = Path(__file__).parent
KILLS = int(os.environ.get("EXPORT_QUEUE_STREAM_KILLS", "4"))
"""How many drivers a long run kills. Each costs a start of Spark, so a change of loads is tested with 100 by hand."""
STREAMS = 4
"""How many streams a driver that is killed at random runs, each in another phase of its batch."""
ROWS = 3
"""Rows of a file, and so of a batch."""
CONF = {
    **QUICK_CONF,
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    # tiny batches cost less if Java compiles nothing for them
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.daemon.module": MODULE,  # imports PySpark with its byte code
}


class Stream:
    """The files, the store and the checkpoint of one stream, and what a sink has got of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = 0
        self.sink = MemorySink()
        self.acknowledged = 0
        (folder / "incoming").mkdir(parents=True)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "customers"

    @property
    def expected(self) -> dict[tuple[str, bytes], bytes]:
        """Each row has a key of its own, so that one that comes twice is seen."""
        names = [f"{file}-{row}" for file in range(self.files) for row in range(ROWS)]
        return {("customers", name.encode()): b'{"name":"%s"}' % name.encode() for name in names}

    def bring(self, files: int) -> None:
        """Write more files, which Spark sees whole."""
        for number in range(self.files, self.files + files):
            rows = [{"id": f"{number}-{row}", "name": f"{number}-{row}", "version": row} for row in range(ROWS)]
            file = self.folder / "incoming" / f"{number:06}.json"
            file.with_suffix(".new").write_text("\n".join(map(json.dumps, rows)))
            os.utime(file.with_suffix(".new"), (number, number))  # Spark takes the oldest files first
            file.with_suffix(".new").rename(file)
        self.files += files

    def last(self, log: str) -> int:
        """The last batch in one of Spark's logs, or -1."""
        found = self.checkpoint / log
        return max((int(path.name) for path in found.glob("*") if path.name.isdigit()), default=-1)

    def moment(self, store: Store) -> str:
        """At which moment of a batch the stream was killed, as store and checkpoint tell."""
        planned, done = self.last("offsets"), self.last("commits")
        if planned == done:
            return "between two batches" if done >= 0 else "before the first batch"
        query_id = json.loads((self.checkpoint / "metadata").read_text())["id"]
        committed = store.idempotency(f"stream {query_id} batch {planned}").committed
        return "after the commit, before Spark's" if committed else "before the commit"

    def drain(self, store: Store) -> None:
        """Deliver what has been committed."""
        report = drain(store, "customers", self.sink, sink_name="memory")
        report.check()
        assert (report.left, report.dead) == (0, 0)
        self.acknowledged += report.acknowledged

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        with Store.open(f"sqlite:///{self.folder / 'streams.db'}") as store:
            yield store

    def finish(self) -> None:
        """Run the page in this process until everything has been added."""
        names = stream_main.start(self.folder, files=1000)
        try:
            names["query"].awaitTermination()
        finally:
            names["query"].stop()
            names["store"].close()

    def check(self) -> None:
        """Every row is in the sink, and was delivered once."""
        with self.store() as store:
            self.drain(store)
        assert self.sink.records() == self.expected
        assert self.acknowledged == len(self.expected), "rows were added twice"


class Driver:
    """A program with streams, and everything it has started, to be killed at once."""

    def __init__(
        self, streams: Sequence[Stream], environment: Mapping[str, str], log: Path, *, stops_after: int | None = None
    ) -> None:
        plan = {"conf": CONF, "folders": [str(one.folder) for one in streams], "stops_after": stops_after}
        self._lines: queue.Queue[list[str]] = queue.Queue()
        self._log = log
        paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYSPARK_PYTHON": sys.executable}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "stream_main.py"), json.dumps(plan)],
                env={**environment, **paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.java = int(self.next()[1])
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.split())
        self._lines.put(["gone"])

    def next(self) -> list[str]:
        """What the driver reports next."""
        try:
            found = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            found = ["silent"]
        log = self._log.read_text(errors="replace")
        assert found[0] not in ("gone", "silent"), f"the driver is {found[0]}: {log[-3000:]}"
        return found

    def wait_for(self, *words: str) -> None:
        """Wait for a report that begins with these words."""
        while (found := self.next())[: len(words)] != list(words):
            assert found != ["done"], f"nothing is left to do, and {words} did not come"

    def kill(self, *, python_alone: bool = False) -> None:
        """Kill Python and Java at once, or Python alone, whose Java ends by itself."""
        if python_alone:
            self.process.kill()
            wait_until(lambda: not is_running(self.java), "Java outlives its driver")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path / "stream")


def test_a_driver_killed_between_the_two_commits_adds_no_row_twice_and_loses_none(
    stream: Stream, spark: Any, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    stream.bring(3)
    driver = Driver([stream], spark_environment, tmp_path / "log", stops_after=1)
    try:
        driver.wait_for("end", "0", "1")
    finally:
        driver.kill()
    with stream.store() as store:
        assert (stream.last("offsets"), stream.last("commits")) == (1, 0)
        stream.drain(store)
    assert stream.acknowledged == 2 * ROWS
    stream.finish()
    stream.check()


def test_a_new_checkpoint_begins_with_keys_of_its_own(stream: Stream, spark: Any) -> None:
    stream.bring(1)
    stream.finish()
    stream.check()
    shutil.rmtree(stream.checkpoint)
    (stream.folder / "incoming" / "000000.json").unlink()
    stream.bring(1)
    stream.finish()  # its batch has the number 0, as the one before
    stream.check()


def test_batches_of_a_few_rows_are_added_once_as_rows(stream: Stream, spark: Any) -> None:
    stream.bring(2)
    names = stream_main.start(stream.folder, watched=lambda export: lambda batch, batch_id: None)
    names["query"].awaitTermination()
    shutil.rmtree(stream.checkpoint)
    (_, _, few) = stream_main.blocks()
    exec(compile(few, "docs/streaming.md", "exec"), names)

    def twice(batch: Any, batch_id: int) -> None:
        for _ in range(2):
            names["export_few"](batch, batch_id)

    writer = names["changes"].writeStream.foreachBatch(twice).option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    names["store"].close()
    stream.check()


@pytest.mark.full("some batches of Spark; a driver is killed in a batch anyway")
def test_a_query_that_is_stopped_in_a_batch_adds_it_once(stream: Stream, spark: Any) -> None:
    stream.bring(3)
    begun, stopped = threading.Event(), threading.Event()

    def watched(export: stream_main.Export) -> stream_main.Export:
        def call(batch: Any, batch_id: int) -> None:
            begun.set()
            stopped.wait(PATIENCE)
            export(batch, batch_id)

        return call

    names = stream_main.start(stream.folder, watched=watched)
    assert begun.wait(PATIENCE)
    stopping = threading.Thread(target=names["query"].stop)
    stopping.start()
    stopped.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive(), "the query does not stop"
    assert stream.last("offsets") == 0
    names["store"].close()
    stream.finish()
    stream.check()


def test_a_frame_outside_of_a_stream_has_no_name(stream: Stream, spark: Any) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(stream_main.blocks()[0].replace("/var/lib/", f"{stream.folder}/"), names)
    with pytest.raises(RuntimeError, match="found a DataFrame without the id of a streaming query"):
        names["export"](spark.range(1), 0)
    names["store"].close()


@pytest.mark.full("a start of Spark for each driver that is killed")
@pytest.mark.timeout(60 * (KILLS + 5))
def test_drivers_killed_at_any_moment_add_no_row_twice_and_lose_none(
    spark: Any, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    """Every driver runs several streams, and is killed soon after a step of one of them; drains run in between."""
    seed = os.environ.get("EXPORT_QUEUE_SEED") or str(random.randrange(1 << 32))
    print(f"EXPORT_QUEUE_SEED={seed}")
    choose = random.Random(seed)
    streams = [Stream(tmp_path / f"stream-{number}") for number in range(STREAMS)]
    moments: Counter[str] = Counter()
    for _ in range(KILLS):
        for stream in streams:
            stream.bring(max(0, stream.last("commits") + 20 - stream.files))
        step, victim = choose.choice(("begin", "end", "end")), str(choose.randrange(STREAMS))
        driver = Driver(streams, spark_environment, tmp_path / "log")
        try:
            for _ in range(choose.choice((1, 1, 2))):
                driver.wait_for(step, victim)
            time.sleep(choose.uniform(0, 0.3 if step == "end" else 1.0))
        finally:
            driver.kill(python_alone=choose.random() < 0.3)
        for stream in streams:
            with stream.store() as store:
                moments[stream.moment(store)] += 1
                stream.drain(store)
    print(f"{KILLS} drivers of {STREAMS} streams were killed: {dict(moments)}")
    if KILLS >= 50:  # fewer meet both moments only by luck; a test above meets the second one for certain
        assert moments["before the commit"]
        assert moments["after the commit, before Spark's"]
    for stream in streams:
        stream.finish()
        stream.check()
