"""The raw objects that agents stored, as planners and readers see them.

* ``objects`` reads each kind of object of a partition, also piece by piece; ``tombstones`` and ``masks`` read theirs
* ``heads`` has the order in which a partition is read, and ``partition`` what is found of it
* ``packs`` follows the chains of packed and unsealed ranges, decides which offsets of them count, and gives them the
  form of segments; ``sealed_packs`` compares ranges with the seals that have their offsets
* ``segments`` and ``byte_ranges`` have the rules and are pure; a consumer's :mod:`tidemark.remote.segments` reads what
  the rules need, and keeps it
"""
