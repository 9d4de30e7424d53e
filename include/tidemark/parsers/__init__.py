"""Parsers: from a record's bytes to columns of a table, with the topic's settings.

* ``settings`` are the settings in a topics file; it imports nothing heavy
* ``factory`` makes the parser of a topic; it and all below need the extra ``tidemark-kafka[parsers]``
* ``base`` is the contract of a parser; ``json``, ``avro``, ``protobuf`` and ``function`` keep it
* the ``kernel`` modules are compiled loops, which fill ``slots``; ``row_parser`` reads what they leave

A parser is a pure function of its settings, of the schemas that they name, and of the rows. So a date that is made
again from raw is equal to the first one.
"""
