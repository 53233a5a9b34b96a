"""The library behind the provider: transactions, queues, sinks and drains, without Airflow and without PySpark."""
