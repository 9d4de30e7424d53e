"""The raw objects of a topic that agents stored, as planners and readers see them.

* ``topic`` reads the objects of a topic, ``objects`` reads each kind of object of a partition
* ``heads`` has the order in which a partition is read, ``tails`` the packed ranges in the form of segments
* ``packs`` follows the chains of packed and unsealed ranges, and decides which offsets of them count
* ``segments``, ``transactions`` and ``byte_ranges`` have the rules and are pure
* ``stored_bytes`` reads an object piece by piece, and its checksum
"""
