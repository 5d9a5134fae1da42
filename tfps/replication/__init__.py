"""Replicas of a model on several workers, whose gradients make one update."""

from tfps.replication.hybrid import HybridStrategy
from tfps.replication.in_graph import InGraphStrategy

__all__ = ['HybridStrategy', 'InGraphStrategy']
