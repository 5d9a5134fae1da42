"""Comparisons as text for people and as JSON for programs."""

from collections.abc import Iterable
import datetime
import json
import os
import pathlib
import platform
import statistics
from typing import Any

from benchmarks import runner

HEADER = (
  f'{"benchmark":<56} {"ours":>10} {"stock":>10}  unit         '
  'times better (lowest..highest)'
)


def as_text(comparison: runner.Comparison) -> str:
  """One line."""
  low, high = comparison.spread
  return (
    f'{comparison.name:<56} {statistics.median(comparison.ours):>10.4g} '
    f'{statistics.median(comparison.stock):>10.4g}  {comparison.unit:<12} '
    f'{comparison.median_ratio:.2f} ({low:.2f}..{high:.2f})'
  )


def as_json(
  comparisons: Iterable[runner.Comparison], *, quick: bool
) -> dict[str, Any]:
  """Everything that was measured, and where."""
  return {
    'date': datetime.datetime.now(datetime.timezone.utc).isoformat(),
    'quick': quick,
    'machine': {
      'cpus': os.cpu_count(),
      'load': os.getloadavg()[0],
      'platform': platform.platform(),
      'python': platform.python_version(),
    },
    'benchmarks': [_entry(comparison) for comparison in comparisons],
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
