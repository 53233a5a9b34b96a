"""The demo: a year of flights goes through transactions, queues and Spark into four stores, which are then proven.

``python -m demo`` runs the DAG of ``flights.py`` on servers of its own.
"""
