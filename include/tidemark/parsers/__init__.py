"""Parsers: from a record's bytes to columns of a table, by the topic's settings.

* ``settings`` and ``column_types`` are what a topics file may say; they import nothing heavy
* ``build`` makes the parser of a topic; it and all below need the extra ``tidemark[parsers]``
* ``base`` is what a parser promises; ``json_blocks``, ``avro``, ``protobuf`` and ``function`` keep it

A parser is a pure function of its settings, of the schemas that they name, and of the rows: so a date made again from
raw is the date that was made first.
"""
