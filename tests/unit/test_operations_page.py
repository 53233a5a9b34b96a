"""The figures, metrics and views on the page about operations are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from export_queue import Store
from export_queue.core.maintenance import read_metrics
from export_queue.core.maintenance.cleanup import DAY
from export_queue.core.store import RIGHTS, ROLES, grants, views
from export_queue.core.transactions import MAX_SHORT_SECONDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text()
METRICS = (DOCS / "metrics.md").read_text()
WORDS = " ".join(PAGE.split())


def test_every_query_of_the_page_about_operations_runs(tmp_path):
    queries = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert queries
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.create()
        with store.database.read() as work:
            for query in queries:
                work.connection.exec_driver_sql(query.strip().rstrip(";")).all()


def test_the_page_about_operations_has_the_right_figures():
    assert MAX_SHORT_SECONDS == 3600
    assert "at least one hour" in WORDS
    assert DAY == 24 * 3600
    assert "| outcomes of commits | 24 hours;" in WORDS
    assert "| idempotency keys | 30 days;" in WORDS


def test_the_page_about_operations_explains_every_metric(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.create()
        names = {metric.name for metric in read_metrics(store.database)}
    table = METRICS.partition("| metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == names


def test_the_page_about_operations_explains_every_view():
    table = METRICS.partition("| view |")[2]
    assert set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == set(views.VIEWS)


def test_the_statements_for_an_application_are_those_of_the_command_line():
    (shown,) = re.findall(r"```text\n(grant .*?)```", PAGE, re.DOTALL)
    assert shown == "".join(f"{one};\n" for one in grants(RIGHTS["application"], "export_queue", "app"))
    roles = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Give roles their rights")[2], re.MULTILINE)
    assert [*dict.fromkeys(roles)][: len(ROLES)] == [*ROLES]


def test_what_a_drainer_may_change_to_lock_rows_is_on_the_page():
    columns = {right.name for right in RIGHTS["drainer"] if right.kind == "column"}
    of_clean_up = {"xq_store.horizon", "xq_store.expiry_ms", "xq_load.ended_ms", "xq_hidden_segment.hidden_ms"}
    of_locks = {"xq_queue.binding", "xq_queue.sink", "xq_conflict_key.key", "xq_segment_reader.number"}
    assert columns == {*of_clean_up, *of_locks, "xq_layout.closed_ms"}
    assert "the numbers and times up to which clean-up has come, and when a layout was closed" in WORDS
    assert "the sink and the binding of a queue, the key of a conflict key, and the number of a pending file" in WORDS
