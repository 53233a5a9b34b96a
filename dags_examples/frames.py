"""Functions that return DataFrames. Spark's Python runs them, without Airflow."""

from __future__ import annotations


# [START frames]
def totals(spark, customers):
    """Count and sum up orders: one row per customer, with a key and a value."""
    counted = f"select id % {customers} as customer, count(*) as orders, sum(id) as total from range(1000) group by 1"
    return spark.sql(counted).selectExpr("concat('customer-', customer) as key", "struct(orders, total) as value")


# [END frames]
