"""A server for each task, and the control plane between tasks."""
