"""Backfills: the request of a person, the dry run with its cost, and the outcome.

* ``request`` checks a form as a whole, and is pure
* ``preview``, ``comparison`` and ``outcome`` are the parts of a report; a run writes each of them once
* ``estimate`` computes the duration and the number of requests from measured rates
* ``report`` reads the parts of a run from the store, ``report_tables`` renders them as tables
"""
