"""What docs/replication.md shows of hybrids."""

from collections.abc import Mapping
import pathlib

from benchmarks.pages import marked
from benchmarks.pages import runs as runs_lib


def write(path: pathlib.Path, runs: Mapping[str, runs_lib.Run]) -> list[str]:
  """Puts tables into the page; see `marked.write`."""
  return marked.write(path, runs, ('hybrid', 'hybrid_rule'))
