"""Replicas of a model on several workers, whose gradients make one update."""

from tfps.strategies.hybrid import HybridStrategy
from tfps.strategies.in_graph import InGraphStrategy

__all__ = ['HybridStrategy', 'InGraphStrategy']
