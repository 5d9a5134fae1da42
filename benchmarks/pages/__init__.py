"""Pages of docs that tell what benchmarks have measured."""
