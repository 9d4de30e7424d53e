"""Formats of objects in raw: segments, packs, heads, watermarks and gaps."""
