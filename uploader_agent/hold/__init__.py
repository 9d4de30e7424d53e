"""Keeps the files of rotated segments from the broker's retention until the store has them."""

from uploader_agent.hold.hold import Hold, check_links

__all__ = ["Hold", "check_links"]
