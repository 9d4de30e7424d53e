"""The agent's reports about itself: logs, metrics, health, systemd."""
