"""Runs training: step programs, the loop, the coordinator, checkpoints."""
