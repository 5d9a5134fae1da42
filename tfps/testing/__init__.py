"""Real clusters for tests, in this process or one process per task."""
