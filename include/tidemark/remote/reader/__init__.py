"""Records of the remote tier, read ahead, decoded, and kept within a limit of memory."""
