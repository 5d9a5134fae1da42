"""Tables of docs/performance.md: from the start of training to codecs."""

from collections.abc import Mapping
import pathlib

from benchmarks.pages import marked
from benchmarks.pages import runs as runs_lib

_TABLES = (
  *('first-step-mlp', 'first-step-embedding', 'first-step-embeddings'),
  *('throughput', 'flights', 'images'),
  *('dense-mlp', 'dense-large', 'embedding', 'embedding-keyed'),
  *('embedding-many', 'storage', 'growth'),
  *('peers-mlp', 'peers-clicks', 'peers-features'),
  *('overhead-small', 'overhead-large', 'wire'),
  *('recovery-ready-flights', 'recovery-ready-digits'),
  *('recovery-flights', 'recovery-digits', 'recovery-small'),
  *('recovery-large', 'recovery-embedding'),
  *('secure', 'observed', 'codecs'),
)


def write(path: pathlib.Path, runs: Mapping[str, runs_lib.Run]) -> list[str]:
  """Puts tables between the page's marks.

  Returns:
    The tables that have not been measured, and stay as they are.
  """
  return marked.write(path, runs, _TABLES)
