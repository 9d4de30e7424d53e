"""Spark itself: sessions, classic and Connect, and what runs on their workers."""
