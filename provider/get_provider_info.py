"""The provider's information: Airflow reads it at every start, so it imports nothing of the package but the version."""

from __future__ import annotations

from typing import Any

from export_queue import __version__

INTEGRATION = "Export Queue"


def get_provider_info() -> dict[str, Any]:
    """Describe the provider: connection type, task decorator, asset scheme, command, configuration and modules."""
    return {
        "package-name": "airflow-provider-export-queue",
        "name": INTEGRATION,
        "description": (
            "Transactional exports: what a transaction commits, and nothing else, reaches Redis, Elasticsearch, "
            "OpenSearch and SQL."
        ),
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": INTEGRATION,
                # the recipe that the queue follows
                "logo": "/export-queue/logo.svg",  # the page in the UI has it
                "external-doc-url": "https://fluo.apache.org/docs/fluo-recipes/1.2/recipes/export-queue/",
                "tags": ["software"],
            }
        ],
        "connection-types": [_connection_type()],
        "task-decorators": [
            {"name": "export_transaction", "class-name": "export_queue.decorators.export_transaction_task"}
        ],
        "asset-uris": [
            {
                "schemes": ["export-queue"],
                "handler": "export_queue.assets.sanitize_uri",
                "factory": "export_queue.assets.create_asset",
                "to_openlineage_converter": "export_queue.assets.convert_asset_to_openlineage",
            }
        ],
        "cli": ["export_queue.airflow_cli.get_cli_commands"],
        "config": {"export_queue": _configuration()},
        "hooks": [
            {
                "integration-name": INTEGRATION,
                "python-modules": _modules(
                    "hooks", "export_queue", "redis", "elasticsearch", "opensearch", "sql", "sink"
                ),
            }
        ],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": _modules(
                    "operators",
                    "compact",
                    "configure",
                    "drain",
                    "maintain",
                    "mirror",
                    "observe",
                    "rebuild",
                    "replay",
                    "retry_dead_letters",
                    "spark_compact",
                    "spark_drain",
                    "spark_load",
                    "spark_verify",
                    "verify",
                ),
            }
        ],
        "sensors": [
            {
                "integration-name": INTEGRATION,
                "python-modules": _modules("sensors", "drained", "export_queue", "notification"),
            }
        ],
        "extra-links": [f"export_queue.links.{name}" for name in ("QueuePageLink", "DeadLettersLink", "SparkUiLink")],
        "notifications": ["export_queue.notifications.ExportQueueNotifier"],
        "queues": ["export_queue.queues.ExportQueueMessageQueueProvider"],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": ["export_queue.triggers"]}],
    }


def _modules(room: str, *names: str) -> list[str]:
    return [f"export_queue.{room}.{name}" for name in names]


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "export_queue",
        "hook-name": "Export Queue",
        "hook-class-name": "export_queue.hooks.export_queue.ExportQueueHook",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port"],
            "relabeling": {"host": "Store URL", "login": "User"},
            "placeholders": {
                "host": "postgresql+psycopg://db.example:5432/exports or sqlite:////var/lib/exports.db",
                "login": "user of the store's database, unless the URL names it",
                "password": "kept apart from the URL, so that no log and no command line shows it",
            },
        },
        "conn-fields": {
            "sql_conn_id": {
                "label": "SQL connection",
                "description": "Id of a postgres or sqlite connection that holds the store; instead of a store URL.",
                "schema": {"type": ["string", "null"], "default": None},
            },
            "store_schema": {
                "label": "Schema",
                "description": "Schema of the database that holds the store.",
                "schema": {"type": ["string", "null"], "default": "export_queue"},
            },
            "behind_pooler": {
                "label": "Behind a pooler",
                "description": "Whether the database is reached through PgBouncer in transaction mode, or the like.",
                "schema": {"type": ["boolean", "null"], "default": False},
            },
            "segments": {
                "label": "Place of segments",
                "description": "Where bulk entries are: s3://bucket/folder, or a folder that all machines share.",
                "schema": {"type": ["string", "null"], "default": None},
            },
        },
    }


def _configuration() -> dict[str, Any]:
    return {
        "description": "Settings of the Export Queue provider.",
        "options": {
            "spark_home": {
                "description": (
                    "Folder of the Spark that drains run on, with ``bin/spark-submit`` in it: a virtual environment "
                    "of its own that holds ``airflow-provider-export-queue[spark]``, or a Spark distribution. "
                    "Empty: ``spark-submit`` is looked up on the worker's PATH."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "/opt/spark-environment",
                "default": "",
            },
            "ui_conn_ids": {
                "description": (
                    "Ids of the connections whose stores have a page in the UI, separated by commas. "
                    "Empty: there is no page. The API server reads it when it starts."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "export_queue_default",
                "default": "",
            },
        },
    }
