"""Sends what a job read and wrote to OpenLineage, or hands it over to the task of Airflow's that started the job."""
