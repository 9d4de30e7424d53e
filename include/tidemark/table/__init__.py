"""One topic's Delta table: its committed ledger, the evidence of its rows, and checks for changes by other programs."""
