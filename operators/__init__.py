"""Airflow operators."""

from export_queue.operators.compact import ExportQueueCompactOperator
from export_queue.operators.configure import ExportQueueConfigureOperator
from export_queue.operators.drain import ExportQueueDrainOperator
from export_queue.operators.maintain import ExportQueueMaintainOperator
from export_queue.operators.mirror import ExportQueueMirrorOperator
from export_queue.operators.observe import ExportQueueObserveOperator
from export_queue.operators.rebuild import ExportQueueRebuildOperator
from export_queue.operators.replay import ExportQueueReplayOperator
from export_queue.operators.retry_dead_letters import ExportQueueRetryDeadLettersOperator
from export_queue.operators.spark_compact import ExportQueueSparkCompactOperator
from export_queue.operators.spark_drain import ExportQueueSparkDrainOperator
from export_queue.operators.spark_load import ExportQueueSparkLoadOperator
from export_queue.operators.spark_verify import ExportQueueSparkVerifyOperator
from export_queue.operators.verify import ExportQueueVerifyOperator

__all__ = [
    "ExportQueueCompactOperator",
    "ExportQueueConfigureOperator",
    "ExportQueueDrainOperator",
    "ExportQueueMaintainOperator",
    "ExportQueueMirrorOperator",
    "ExportQueueObserveOperator",
    "ExportQueueRebuildOperator",
    "ExportQueueReplayOperator",
    "ExportQueueRetryDeadLettersOperator",
    "ExportQueueSparkCompactOperator",
    "ExportQueueSparkDrainOperator",
    "ExportQueueSparkLoadOperator",
    "ExportQueueSparkVerifyOperator",
    "ExportQueueVerifyOperator",
]
