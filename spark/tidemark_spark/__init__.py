"""Raw segments to Parquet under a Delta log: Spark schedules, the Python workers convert, the driver publishes.

* ``convert``: one task, in any Python process; ``worker`` says what is done by the kind of a job
* ``run``: a run from its plan to its commit. The outcomes of all tasks become one change of the table, offset by offset
* ``cluster``: Spark, classic or Connect
* ``rebuild``, ``retention``, ``compaction``, ``vacuum``: what else changes a table
* ``audit``: raw and table read again, and proved equal
* ``datasource``: raw segments as a format of Spark's; ``export``: raw segments as plain files
* ``cli``: the command lines of the jobs; ``model``: what driver and workers tell each other
"""
