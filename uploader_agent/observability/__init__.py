"""What the agent says about itself: logs, metrics, health, systemd."""
