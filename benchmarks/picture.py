"""Draws a table: a bar for each variant, and a line at its limit."""

import pathlib
from typing import Any

from benchmarks import tables

_BAR = 0.8


def draw(table: tables.Table, path: pathlib.Path) -> None:
  """Writes a PNG.

  Raises:
    RuntimeError: matplotlib is not installed.
  """
  figure_lib = matplotlib()
  height = 1.2 + 0.4 * len(table.rows)
  figure = figure_lib.Figure((9, height), layout='constrained')
  axes = figure.subplots()
  bars = axes.barh(
    [row[0] for row in table.rows], [v or 0 for v in table.bars.values]
  )
  axes.bar_label(
    bars, [_label(value) for value in table.bars.values], padding=4
  )
  _mark(axes, table.bars)
  axes.invert_yaxis()
  axes.margins(x=0.12)
  axes.set(title=table.title, xlabel=table.bars.label)
  axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(path, dpi=120)


def _mark(axes: Any, bars: tables.Bars) -> None:
  """Draws the limit of each bar that has one."""
  label = bars.limit_label
  for row, limit in enumerate(bars.limits):
    if limit is not None:
      ends = row - _BAR / 2, row + _BAR / 2
      axes.plot([limit] * 2, ends, color='black', label=label)
      label = ''  # once in the legend
  if any(limit is not None for limit in bars.limits):
    axes.legend(loc='lower right', frameon=False)


def _label(value: float | None) -> str:
  return 'none' if value is None else f'{value:.3g}'


def matplotlib() -> Any:
  """Its module of figures.

  Raises:
    RuntimeError: it is not installed.
  """
  try:
    from matplotlib import figure
  except ModuleNotFoundError as error:
    raise RuntimeError(
      f"{error}. Pictures take the extra 'bench': pip install '.[bench]' from "
      'a checkout.'
    ) from error
  return figure
