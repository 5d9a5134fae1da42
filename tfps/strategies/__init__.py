"""Strategies: which tasks train, where variables are, how updates are made."""

from tfps.strategies.hybrid import HybridStrategy
from tfps.strategies.in_graph import InGraphStrategy

__all__ = ['HybridStrategy', 'InGraphStrategy']
