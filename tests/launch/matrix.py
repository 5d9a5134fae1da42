"""Table of what each engine was seen to do, kept in a page."""

from collections.abc import Mapping
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'launch.md'
_BEGIN = '<!-- what each engine was seen to do: make engines -->\n'
_END = '<!-- end -->\n'
_NOT_RUN = 'not run'


def update(text: str, seen: Mapping[tuple[str, str], str]) -> str:
  """Returns a page whose table has new cells; all others stay.

  Args:
    text: the page.
    seen: (row, column) -> cell.
  """
  head, begin, rest = text.partition(_BEGIN)
  table, end, tail = rest.partition(_END)
  if not (begin and end):
    raise ValueError(f'The page has no {_BEGIN!r} with {_END!r} after it.')
  cells = {**_parse(table), **seen}
  return head + begin + _format(cells) + end + tail


def _parse(table: str) -> dict[tuple[str, str], str]:
  """Returns the cells of a table."""
  lines = [
    [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
    for line in table.splitlines()
  ]
  if len(lines) < 3:
    return {}
  (_, *columns), _, *rows = lines
  return {
    (row, column): cell
    for row, *values in rows
    for column, cell in zip(columns, values, strict=True)
  }


def _format(cells: Mapping[tuple[str, str], str]) -> str:
  """Returns a table, with rows and columns in the order of their first cell."""
  rows, columns = (
    list(dict.fromkeys(keys)) for keys in zip(*cells, strict=True)
  )
  lines = [['', *columns], ['---'] * (len(columns) + 1)]
  lines += [
    [row, *(cells.get((row, column), _NOT_RUN) for column in columns)]
    for row in rows
  ]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)
