"""Starts a program as all tasks of a cluster, and supervises them."""
