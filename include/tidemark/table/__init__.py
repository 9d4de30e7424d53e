"""One topic's Delta table: its committed ledger, the evidence of its rows, and whether another program changed it."""
