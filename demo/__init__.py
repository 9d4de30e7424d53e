"""The whole of Tidemark on one machine, on real parts: ``make demo``."""
