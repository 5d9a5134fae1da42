"""Deadlines, threads, processes, ports and signals, without TensorFlow."""
