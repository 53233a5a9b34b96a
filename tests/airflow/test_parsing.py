"""Writing a DAG costs little: none of the heavy packages is imported, nothing is asked of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import export_queue

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
DAGS = (
    "add_a_reader",
    "business_tables",
    "index_by_city",
    "two_copies_as_one",
    "count_sales",
    "publish_sales",
    "recount",
    "publish",
    "set_up_orders",
    "mapped_drain",
    "local_drain",
    "maintenance",
    "nightly_verify",
    "one_transaction",
    "react_to_changes",
    "rebuild_an_index",
    "replay_a_part",
    "retry_dead_letters",
    "wait_for_export",
)
HEAVY = (
    "pyspark",
    "redis",
    "elasticsearch",
    "elastic_transport",
    "opensearchpy",
    "pyarrow",
    "pandas",
    "psycopg",
    "psycopg2",
)

PROGRAM = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path)
import export_queue.plugin
assert "export_queue.page" not in sys.modules
print(sorted({name.split(".")[0] for name in sys.modules} & set(%r)))
"""


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-P", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_no_example_imports_a_heavy_package() -> None:
    paths = sorted(str(path) for path in EXAMPLES.glob("*.py"))
    assert len(paths) > 4
    assert run(PROGRAM % (HEAVY,), *paths) == "[]"


def test_airflow_finds_all_examples_without_errors(airflow_database: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(EXAMPLES), bundle_path=EXAMPLES, bundle_name="examples")
    assert bag.import_errors == {}
    assert set(DAGS) <= set(bag.dags)


@pytest.mark.parametrize(
    "dag_id",
    DAGS,
)
def test_examples_can_be_stored_by_the_dag_processor(airflow_database: Path, dag_id: str) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(dag_folder=str(EXAMPLES), bundle_path=EXAMPLES, bundle_name="examples")
    stored = DagSerialization.to_dict(bag.dags[dag_id])
    assert stored["dag"]["dag_id"] == dag_id


def test_airflow_lists_the_provider_its_connection_type_and_its_form() -> None:
    program = """
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
assert "airflow-provider-export-queue" in manager.providers
hook = manager.hooks["export_queue"]
assert hook.hook_name == "Export Queue", hook
assert "host" in manager.field_behaviours["export_queue"]["relabeling"]
print(sorted(name for name in manager.connection_form_widgets if "export_queue" in name))
"""
    fields = ("behind_pooler", "segments", "sql_conn_id", "store_schema")
    assert run(program) == str([f"extra__export_queue__{name}" for name in fields])


def test_airflow_shows_the_provider_on_the_command_line_and_in_its_rest_api() -> None:
    program = """
import importlib.metadata, json, sys
from airflow.api_fastapi.core_api.services.public.providers import _provider_mapper
from airflow.cli import cli_parser
from airflow.cli.commands import provider_command
from airflow.providers_manager import ProvidersManager
name = "airflow-provider-export-queue"
words = ["providers", "get", name, "--full", "--output", "json"]
provider_command.provider_get(cli_parser.get_parser().parse_args(words))
shown = _provider_mapper(ProvidersManager().providers[name])
urls = importlib.metadata.metadata(name).get_all("Project-URL") or []
named = [url.partition(",")[2].strip() for url in urls if url.startswith("Documentation,")]
assert [shown.documentation_url] == (named or [None]), (shown, named)
print()
print(json.dumps([shown.package_name, shown.version]))
"""
    assert json.loads(run(program)) == ["airflow-provider-export-queue", export_queue.__version__]


def test_the_configuration_section_has_its_options() -> None:
    program = """
import os
os.environ.pop("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", None)
from airflow.sdk import conf
print([conf.get("export_queue", name) for name in ("spark_home", "ui_conn_ids")])
"""
    assert run(program) == "['', '']"
