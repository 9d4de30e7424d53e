"""What the agents stored of a topic, as planners and readers see it.

* ``topic`` reads what the store holds of a topic, ``objects`` each kind of object of a partition
* ``segments``, ``transactions`` and ``byte_ranges`` are the rules, and pure
* ``prefix_proof`` proves that an object still begins with what its manifest said
"""
