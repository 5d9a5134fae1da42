"""What was found, as text for people and as JSON for programs."""

from collections.abc import Iterable
import dataclasses
import datetime
import json
import pathlib
import statistics
from typing import Any

from benchmarks import curves
from benchmarks import machine as machine_lib
from benchmarks import runner
from benchmarks import tables

Found = runner.Comparison | tables.Table | curves.Curves

HEADER = (
  f'{"benchmark":<56} {"ours":>10} {"stock":>10}  unit         '
  'times better (lowest..highest)'
)


def as_text(found: Found) -> str:
  """A line, or several."""
  if isinstance(found, tables.Table):
    return tables.as_text(found)
  if isinstance(found, curves.Curves):
    return curves.as_text(found)
  low, high = found.spread
  return (
    f'{found.name:<56} {statistics.median(found.ours):>10.4g} '
    f'{statistics.median(found.stock):>10.4g}  {found.unit:<12} '
    f'{found.median_ratio:.2f} ({low:.2f}..{high:.2f})'
  )


def as_json(
  found: Iterable[Found],
  machine: machine_lib.Machine,
  *,
  command: str,
  secs: float,
  quick: bool,
) -> dict[str, Any]:
  """Everything that was measured, where and by what command."""
  found = list(found)
  return {
    'date': datetime.datetime.now(datetime.timezone.utc).isoformat(),
    'command': command,
    'secs': secs,
    'quick': quick,
    'machine': dataclasses.asdict(machine),
    'benchmarks': [
      _entry(one) for one in found if isinstance(one, runner.Comparison)
    ],
    'tables': [
      dataclasses.asdict(one) for one in found if isinstance(one, tables.Table)
    ],
    'curves': [
      dataclasses.asdict(one) for one in found if isinstance(one, curves.Curves)
    ],
  }


def write_json(report: dict[str, Any], directory: pathlib.Path) -> pathlib.Path:
  """Writes a report to a file named after its date, and returns its path."""
  directory.mkdir(parents=True, exist_ok=True)
  path = directory / f'{report["date"][:19].replace(":", "-")}.json'
  path.write_text(json.dumps(report, indent=2) + '\n')
  return path


def _entry(comparison: runner.Comparison) -> dict[str, Any]:
  return {
    'name': comparison.name,
    'unit': comparison.unit,
    'ours': list(comparison.ours),
    'stock': list(comparison.stock),
    'ratios': comparison.ratios,
    'median_ratio': comparison.median_ratio,
    'spread': list(comparison.spread),
  }
