"""The raw objects of a topic that agents stored, as planners and readers see them.

* ``topic`` reads the objects of a topic, ``objects`` reads each kind of object of a partition
* ``packs`` follows the chains of what is packed and not sealed, and says which of it counts
* ``segments``, ``transactions`` and ``byte_ranges`` have the rules and are pure
* ``stored_bytes`` reads an object piece by piece, and its checksum
"""
