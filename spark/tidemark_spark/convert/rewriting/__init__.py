"""Tasks that make files of a table or of quarantine again, of the same rows or of fewer."""
