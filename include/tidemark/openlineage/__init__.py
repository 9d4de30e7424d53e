"""Lineage as OpenLineage (https://openlineage.io) describes it: datasets, facets of them and of runs, as plain data.

* ``naming`` names topics, raw prefixes and tables as other programs do, ``facets`` describes them
* ``runs`` describes the changes that runs and the other jobs make; ``facets`` joins the parts of a job
* ``hand_over`` lists a job's datasets, and takes its lineage to the Airflow task that started the job

Nothing here needs OpenLineage's client or Airflow. The jobs and Airflow's operators send the events.
"""
