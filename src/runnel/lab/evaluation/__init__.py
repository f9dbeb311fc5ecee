"""Quality: metrics, tasks, a user's own questions."""
