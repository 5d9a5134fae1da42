"""Tables that go between marks of a page which have their names."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib

from benchmarks import tables
from benchmarks.pages import runs as runs_lib
from tfps.testing.chaos import outcomes


def text_of(run: runs_lib.Run) -> str:
  """A table with its title, and how it was measured."""
  return f'{run.table.title}:\n\n{tables.as_markdown(run.table)}\n\n{run}'


def write(
  path: pathlib.Path,
  runs: Mapping[str, runs_lib.Run],
  names: Sequence[str],
  *,
  text: Callable[[runs_lib.Run], str] = text_of,
) -> list[str]:
  """Puts tables into a page.

  Args:
    path: of the page.
    runs: by the names of tables.
    names: of those that the page has marks for.
    text: what to put there.

  Returns:
    The tables that have not been measured, and stay as they are.
  """
  for name in names:
    if name in runs:
      page = outcomes.with_table(path.read_text(), text(runs[name]), name=name)
      path.write_text(page)
  return [name for name in names if name not in runs]
