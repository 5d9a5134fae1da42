"""Cluster specification, the sources it is read from, and its topology."""

from tfps.cluster.spec import Cluster
from tfps.cluster.spec import Task

__all__ = ['Cluster', 'Task']
