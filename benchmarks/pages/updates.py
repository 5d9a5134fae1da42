"""What docs/updates.md shows of a slow worker, and of many workers."""

from collections.abc import Mapping
import functools
import pathlib

from benchmarks import curves
from benchmarks import tables
from benchmarks.pages import marked
from benchmarks.pages import runs as runs_lib

_TABLES = ('updates', 'crowd')  # and the marks that they go between


def write(path: pathlib.Path, runs: Mapping[str, runs_lib.Run]) -> list[str]:
  """Puts tables and pictures between the page's marks.

  Returns:
    The tables that have not been measured, and stay as they are.
  """
  text = functools.partial(_text, folder=path.parent)
  return marked.write(path, runs, _TABLES, text=text)


def _text(run: runs_lib.Run, folder: pathlib.Path) -> str:
  parts = [f'{run.table.title}:', tables.as_markdown(run.table)]
  for entry in run.report['curves'] if run.table.name == 'updates' else ():
    found = curves.Curves.from_json(entry)
    picture = folder / f'{found.name}.png'
    curves.draw(found, picture)
    parts.append(f'![{found.title}]({picture.name})')
  return '\n\n'.join([*parts, str(run)])
