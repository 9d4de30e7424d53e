"""Lineage as OpenLineage (https://openlineage.io) describes it: datasets, facets of them and of runs, as plain data.

* ``naming`` names topics, raw prefixes and tables as other programs do, ``facets`` describes them
* ``runs`` tells what a run did to a table, ``upkeep`` what the other jobs did; ``expected`` what a job is about to do
* ``collected`` joins what a job did, ``hand_over`` takes it to the task of Airflow's that started the job

Nothing here needs OpenLineage's client or Airflow. The jobs and Airflow's operators send what is built here.
"""
