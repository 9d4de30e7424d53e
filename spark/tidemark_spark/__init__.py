"""Raw segments to Parquet under a Delta log: Spark schedules, the Python workers convert, the driver publishes.

* ``convert``: one task, in any Python process; ``worker`` chooses the code for the kind of a job
* ``run``: a run from its plan to its commit. The outcomes of all tasks become one change of the table, offset by offset
* ``cluster``: Spark, classic or Connect
* ``rebuild``, ``retention``, ``compaction``, ``vacuum``: the other changes of a table
* ``audit``: reads raw and table again, and proves them equal
* ``datasource``: raw segments as a format of Spark's; ``export``: raw segments as plain files
* ``cli``: the command lines of the jobs; ``model``: the messages between driver and workers
"""
