"""Lineage as OpenLineage (https://openlineage.io) describes it: datasets, facets of them and of runs, as plain data.

* ``naming`` names topics, raw prefixes and tables as other programs do, ``facets`` describes them
* ``runs`` describes a run's changes to a table, ``upkeep`` those of the other jobs; ``facets`` joins the parts of a job
* ``hand_over`` lists a job's datasets, and takes its lineage to the Airflow task that started the job

Nothing here needs OpenLineage's client or Airflow. The jobs and Airflow's operators send the events.
"""
