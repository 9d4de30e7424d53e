"""Sends the lineage of a job to OpenLineage, or hands it over to the Airflow task that started the job."""
