"""Parsers: from a record's bytes to columns of a table, by the topic's settings.

* ``settings`` and ``column_types`` are what a topics file may say; they import nothing heavy
* ``factory`` makes the parser of a topic; it and all below need the extra ``tidemark-kafka[parsers]``
* ``base`` is what a parser promises; ``json_batch``, ``avro``, ``protobuf`` and ``function`` keep it
* ``avro_kernel`` and ``protobuf_kernel`` are compiled loops, which fill ``slots``; ``row_parser`` reads the rest

A parser is a pure function of its settings, of the schemas that they name, and of the rows: so a date made again from
raw is the date that was made first.
"""
