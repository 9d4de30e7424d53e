"""Backfills: the request of a person, the dry run with its cost, and the outcome.

* ``request`` checks a form as a whole, and is pure
* ``preview`` is a part of a report, and also estimates the duration and the number of requests from measured rates
* ``report`` has the outcome and the result of a comparison, and reads the parts of a run from the store, each of which
  a run writes once; ``report_tables`` renders them
"""
