"""Packs and heads: a partition's newest batches go to the store before their segment is sealed."""
