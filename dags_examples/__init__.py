"""DAGs to begin from; point Airflow's DAGs folder here, or copy one."""
