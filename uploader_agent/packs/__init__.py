"""Packs and heads: a partition's newest batches are stored before their segment is sealed."""
