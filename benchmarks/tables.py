"""What a benchmark of several variants has found: a row for each."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bars:
  """What a picture shows of a table: a bar for each row.

  Attributes:
    label: what the bars are, with its unit.
    values: how long they are; None for a row that has none.
    limits: the values that cannot be passed; None where there is no such.
    limit_label: what they are.
  """

  label: str
  values: Sequence[float | None]
  limits: Sequence[float | None] = ()
  limit_label: str = ''


@dataclasses.dataclass(frozen=True)
class Table:
  """What was found, for people to read.

  Attributes:
    name: of the table, for files and for those who look it up.
    title: what it shows.
    columns: of which the first names the rows.
    rows: a text for each column.
    bars: for the picture.
    notes: sentences that belong to it.
    measured: what the rows were made of, for programs.
  """

  name: str
  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[str]]
  bars: Bars
  notes: Sequence[str] = ()
  measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for row in self.rows:
      if len(row) != len(self.columns):
        raise ValueError(
          f'{self.name}: the row {row} has {len(row)} cells, but there are '
          f'{len(self.columns)} columns. Give one for each.'
        )
    if len(self.bars.values) != len(self.rows):
      raise ValueError(
        f'{self.name}: {len(self.bars.values)} bars cannot be drawn for '
        f'{len(self.rows)} rows. Give one for each.'
      )

  @classmethod
  def from_json(cls, entry: Mapping[str, Any]) -> 'Table':
    """From what `dataclasses.asdict` has made of one."""
    return cls(**{**entry, 'bars': Bars(**entry['bars'])})


def as_text(table: Table) -> str:
  """In columns, for a terminal."""
  lines = [table.columns, *table.rows]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    ['', table.title, *(_aligned(line, widths) for line in lines)]
    + list(table.notes)
  )


def as_markdown(table: Table) -> str:
  """For documentation."""
  rule = ['---'] * len(table.columns)
  lines = [f'| {" | ".join(r)} |' for r in (table.columns, rule, *table.rows)]
  notes = [f'\n{note}' for note in table.notes]
  return '\n'.join([*lines, *notes])


def with_spread(values: Sequence[float]) -> str:
  """The median, and the lowest and highest if there are several."""
  median = f'{statistics.median(values):.3g}'
  if len(values) == 1:
    return median
  return f'{median} ({min(values):.3g}..{max(values):.3g})'


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
  """How many times as much as others, round by round."""
  return [v / o for v, o in zip(values, others, strict=True)]


def beside(
  costs: Mapping[str, Sequence[float]], base: Sequence[float]
) -> list[list[str]]:
  """A row for each name: what it costs, and how many times as much as base."""
  return [
    [name, with_spread(each), with_spread(ratios(each, base))]
    for name, each in costs.items()
  ]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
  first, *rest = (
    f'{cell:<{width}}' for cell, width in zip(cells, widths, strict=True)
  )
  return '  '.join([first, *rest]).rstrip()
