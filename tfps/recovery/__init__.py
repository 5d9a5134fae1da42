"""Snapshots, replicas and failover of ps; lost, new and returning workers."""
