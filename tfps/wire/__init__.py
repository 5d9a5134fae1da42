"""Transfers between ps and workers: fusing, packing, encoding and counting."""
