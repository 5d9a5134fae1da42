"""Synchronous updates and bounded staleness, by state kept on the ps."""
