"""Where jobs run: child processes of the task, or a platform that runs them by an id."""
