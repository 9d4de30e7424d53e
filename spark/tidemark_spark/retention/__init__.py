"""Removes past dates from tables, and past segments from raw."""
