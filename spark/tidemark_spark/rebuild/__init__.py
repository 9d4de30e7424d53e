"""Making dates of a table again, and saying beforehand and afterwards what differs."""
