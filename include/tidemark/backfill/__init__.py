"""Backfills: what a person asks for, what it would do and cost, and what came of it.

* ``request`` checks a form as a whole, and is pure
* ``previews``, ``comparisons`` and ``outcomes`` are the parts of a report that a run writes, each once
* ``estimate`` says how long it takes and how many requests it makes, by measured rates
* ``report`` reads the parts of a run from the store, ``tables`` puts them into words
"""
