"""All of Tidemark on one machine, with real parts: ``make demo``."""
