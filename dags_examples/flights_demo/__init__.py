"""The demo: a year of flights goes through transactions, queues and Spark into four stores, which are then proven.

``python -m export_queue.dags_examples.flights_demo`` runs the DAG of ``flights.py`` on servers of its own.
"""
