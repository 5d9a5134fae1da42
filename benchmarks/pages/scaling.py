"""What docs/scaling.md shows: what was measured, and what is predicted.

Below each `$ tfps plan` goes what that prints.
"""

from collections.abc import Mapping
import contextlib
import io
import pathlib
import re
import shlex

from benchmarks import tables
from benchmarks.pages import marked
from benchmarks.pages import runs as runs_lib
from tfps.plan import command as plan_command

_PLAN, _NULL_STEP = 'plan', 'null_step'
_TABLE = re.compile(
  '(<!-- measured by .* -->\n).*(<!-- end of what was measured -->)', re.DOTALL
)
_CONSOLE = re.compile(
  r'(```console\n\$ tfps plan )(.*?)\n(.*?)(```)', re.DOTALL
)


def write(path: pathlib.Path, runs: Mapping[str, runs_lib.Run]) -> list[str]:
  """Puts outputs and tables into the page.

  Returns:
    The tables that have not been measured, and stay as they are.
  """
  page = path.read_text()
  if _PLAN in runs:
    page = with_table(page, runs[_PLAN])
  path.write_text(with_outputs(page))
  missing = marked.write(path, runs, [_NULL_STEP])
  return missing if _PLAN in runs else [_PLAN, *missing]


def with_table(page: str, run: runs_lib.Run) -> str:
  """The page with what a run has measured."""
  table = f'\n{tables.as_markdown(run.table)}\n\n{run}\n\n'
  return _TABLE.sub(lambda match: match[1] + table + match[2], page)


def with_outputs(page: str) -> str:
  """The page with what its commands print."""

  def run(match: re.Match[str]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
      plan_command.main(shlex.split(match[2]))
    return f'{match[1]}{match[2]}\n{output.getvalue()}{match[4]}'

  return _CONSOLE.sub(run, page)
