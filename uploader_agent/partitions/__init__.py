"""The partitions that this broker leads: what disk, broker and store say of each, and what is to be done next."""
