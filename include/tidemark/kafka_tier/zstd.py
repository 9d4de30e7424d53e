"""Decompresses the zstd frames of Kafka's remote tier: whole frames of a size that is known before."""

from __future__ import annotations

from tidemark.errors import ConfigError


def decompressed(frame: bytes, most: int) -> bytes:
    """The content of ``frame``, which has nothing behind it and at most ``most`` bytes in it.

    Raises:
        ValueError: it is no such frame.
        ConfigError: the package that reads it is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("zstandard", [("", "is not installed: pip install 'tidemark-kafka[kafka-tier]'")]) from error
    try:
        stated = zstandard.frame_content_size(frame)
        if stated > most:
            raise ValueError(f"states {stated} bytes, and at most {most} are expected")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"is no zstd frame: {error}") from error
