"""Spark itself: sessions, classic and Connect, and the code around tasks on their workers."""
