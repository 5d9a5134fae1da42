"""Who is in a cluster: its specification, and where that is read from."""

from tfps.cluster.spec import Cluster
from tfps.cluster.spec import Task

__all__ = ['Cluster', 'Task']
