"""Asset events, which notify other DAGs when a date has changed or is final."""
