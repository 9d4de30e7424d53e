"""Keeping the files of rotated segments from the broker's retention until the store has them."""

from uploader_agent.hold.hold import Hold

__all__ = ["Hold"]
