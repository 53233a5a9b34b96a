"""Histories of transactions, and a checker that finds anomalies in them."""
