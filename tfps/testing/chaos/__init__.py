"""Fault campaigns, soak tests and the damage that they do."""
