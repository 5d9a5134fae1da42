"""Placement, partitioning, sharding and sharing of variables."""
