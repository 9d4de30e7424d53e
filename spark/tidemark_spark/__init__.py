"""Raw segments to Parquet under a Delta log: Spark schedules, the Python workers convert, the driver publishes.

* ``task`` (with ``reading``, ``continuity``, ``dates``, ``writer``, ``quarantine``): one task, in any Python process
* ``settle``: the outcomes of all tasks become one change of the table, offset by offset
* ``publish`` (with ``delta``): the one way in which a table changes
* ``driver``: a run from its plan to its result; ``session``: Spark
* ``auditing`` (with ``audit_sides`` and ``tally``): raw and table read again, and proved equal
* ``source``: raw segments as a format of Spark's; ``exporting``: raw segments as plain files
"""
