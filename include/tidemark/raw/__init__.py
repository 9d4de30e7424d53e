"""The raw objects of a topic that agents stored, as planners and readers see them.

* ``topic`` reads the objects of a topic, ``objects`` reads each kind of object of a partition, also piece by piece
* ``heads`` has the order in which a partition is read
* ``packs`` follows the chains of packed and unsealed ranges, decides which offsets of them count, and gives them the
  form of segments
* ``segments`` and ``byte_ranges`` have the rules and are pure
"""
