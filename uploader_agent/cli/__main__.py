"""``python -m uploader_agent.cli``."""

from uploader_agent.cli import main

main()
