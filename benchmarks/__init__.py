"""Ours beside the stock alternative: `python -m benchmarks --help`."""
