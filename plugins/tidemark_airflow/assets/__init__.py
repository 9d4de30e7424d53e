"""Asset events: how other DAGs hear that a date has changed or is final."""
