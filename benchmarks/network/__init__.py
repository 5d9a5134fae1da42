"""A network to measure on: hosts on this machine, links of a given rate."""
