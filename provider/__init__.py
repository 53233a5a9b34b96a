"""Transactional exports: what a transaction commits, and nothing else, reaches Redis, Elasticsearch and SQL."""

__version__ = "0.1.0"
