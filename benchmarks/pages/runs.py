"""Runs of benchmarks, of which pages tell."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from benchmarks import tables


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of a command that has measured a table.

  Attributes:
    report: what it wrote.
    table: the one in question.
  """

  report: Mapping[str, Any]
  table: tables.Table

  def __str__(self) -> str:
    machine, secs = self.report['machine'], self.report['secs']
    packages = ', '.join(f'{n} {v}' for n, v in machine['packages'].items())
    return (
      f'`{self.report["command"]}`, {self.report["date"][:10]}, '
      f'{secs / 60:.0f} minutes. {machine["cpus"]} cpus ({machine["cpu"]}), '
      f'{machine["gigabytes"]:.0f} GB, Python {machine["python"]}, {packages}. '
      f'Before it, other programs kept {machine["busy"]:.1f} cpus busy; the '
      f'load was {machine["load"]:.1f}.'
    )


def latest(folder: pathlib.Path) -> dict[str, Run]:
  """The latest run of each table, quick ones left out."""
  found: dict[str, Run] = {}
  for path in sorted(folder.glob('*.json')):
    report = json.loads(path.read_text())
    for entry in report.get('tables', ()) if not report['quick'] else ():
      table = tables.Table.from_json(entry)
      found[table.name] = Run(report, table)
  return found
