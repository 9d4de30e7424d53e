"""Reads records of the remote tier ahead and decodes them, within a limit of memory."""
