"""Backfills: the request of a person, the dry run with its cost, and the outcome.

* ``request`` checks a form as a whole, and is pure
* ``preview`` and ``outcome`` are parts of a report, which a run writes once; ``preview`` also estimates the duration
  and the number of requests from measured rates
* ``report`` has the result of a comparison, and reads the parts of a run from the store; ``report_tables`` renders them
"""
