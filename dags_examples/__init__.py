"""Example DAGs. Point Airflow's DAGs folder here, or copy one."""
