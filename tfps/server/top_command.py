"""Command `tfps top`, a live table of the tasks of a running job.

It asks each task over the control plane, from any machine that may connect.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import select
import sys
import termios
import time
import tty
from typing import Any
from typing import TYPE_CHECKING

from tfps._compat import lazy_keras
from tfps._utils import option_types
from tfps.server import dump_command

if TYPE_CHECKING:
  from tfps.server import job_table

_KEYS = 's sorts by the next column, r reverses, f freezes, q quits'
_PIPE_WIDTH = 1000  # characters, more than any row has
_UNITS = ('B', 'kB', 'MB', 'GB', 'TB')


@dataclasses.dataclass(frozen=True)
class Shown:
  """How the table is shown.

  Attributes:
    column: index of the column to sort by.
    is_reversed: whether the largest value is the first.
    is_frozen: whether the table stays as it is.
    is_over: whether the command is to end.
  """

  column: int = 0
  is_reversed: bool = False
  is_frozen: bool = False
  is_over: bool = False

  def after(self, key: str, num_columns: int) -> 'Shown':
    """Returns how the table is shown after a key was pressed.

    Args:
      key: the key; others than those of the help change nothing.
      num_columns: the number of columns.
    """
    changes: dict[str, dict[str, Any]] = {
      's': {'column': (self.column + 1) % num_columns},
      'r': {'is_reversed': not self.is_reversed},
      'f': {'is_frozen': not self.is_frozen},
      'q': {'is_over': True},
    }
    return dataclasses.replace(self, **changes.get(key, {}))


def main(argv: Sequence[str] | None = None) -> int:
  """Shows the table until the user quits.

  Args:
    argv: the options; by default the command line's.

  Returns:
    0; with `--once`, 1 if a task has not answered. 1 if no task is found.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  parser = _parser()
  options = parser.parse_args(argv)
  if options.json and not options.once:
    parser.error('--json needs --once.')
  if not options.json:
    try:
      import rich  # noqa: F401
    except ImportError:
      parser.error('tables need rich: pip install "tfps[top]".')
  try:
    known = dump_command.known_tasks(options.address, os.environ)
  except ValueError as error:
    print(f'tfps top: {error}', file=sys.stderr)
    return 1
  # Imported late, as TensorFlow is: wrong options are named at once.
  lazy_keras.import_tensorflow()
  from tfps.server import job_table
  from tfps.server import mailbox

  if options.once:
    table = job_table.JobTable(known, timeout_secs=options.timeout_secs)
    return _show_once(table, options)
  with contextlib.closing(mailbox.Mailboxes()) as mailboxes:
    table = job_table.JobTable(
      known, timeout_secs=options.timeout_secs, mailboxes=mailboxes
    )
    with contextlib.suppress(KeyboardInterrupt), _keys(sys.stdin) as read_key:
      _show(table, options.every_secs, read_key)
  return 0


def sort(
  rows: Sequence['job_table.Row'], shown: Shown
) -> list['job_table.Row']:
  """Returns rows in the order of a column; unknown values are the last.

  Args:
    rows: the rows.
    shown: how they are shown.
  """
  name = [field.name for field in dataclasses.fields(rows[0])][shown.column]
  known = [row for row in rows if getattr(row, name) is not None]
  unknown = [row for row in rows if getattr(row, name) is None]
  if shown.column == 0 and not shown.is_reversed:
    return [*rows]  # in the order of jobs and indices
  known.sort(key=lambda row: getattr(row, name), reverse=shown.is_reversed)
  return known + unknown


def render(rows: Sequence['job_table.Row'], shown: Shown) -> Any:
  """Returns a table of `rich`.

  Args:
    rows: the rows.
    shown: how they are shown.
  """
  from rich import table as table_lib

  caption = _KEYS + (' (frozen)' if shown.is_frozen else '')
  table = table_lib.Table(caption=caption)
  for index, field in enumerate(dataclasses.fields(rows[0])):
    mark = (
      (' v' if shown.is_reversed else ' ^') if index == shown.column else ''
    )
    is_number = field.type not in (str, 'str')
    table.add_column(
      field.name.replace('_per_sec', '/s').replace('_bytes', '') + mark,
      justify='right' if is_number else 'left',
    )
  for row in sort(rows, shown):
    style = None if row.is_alive else 'red'
    values = dataclasses.asdict(row).items()
    table.add_row(*(_cell(n, v) for n, v in values), style=style)
  return table


def _cell(name: str, value: Any) -> str:
  if value is None:
    return '-'
  if name in ('bytes_per_sec', 'memory_bytes'):
    return _bytes(float(value))
  return f'{value:.1f}' if isinstance(value, float) else str(value)


def _bytes(number: float) -> str:
  for unit in _UNITS[:-1]:
    if number < 1000:
      return f'{number:.3g} {unit}'
    number /= 1000
  return f'{number:.3g} {_UNITS[-1]}'


def _show_once(table: 'job_table.JobTable', options: argparse.Namespace) -> int:
  table.read()
  time.sleep(options.every_secs)  # over which rates are
  rows = table.read()
  if options.json:
    print(json.dumps({'tasks': [dataclasses.asdict(row) for row in rows]}))
  else:
    from rich import console

    # What reads a pipe takes lines of any length.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console.Console(width=width).print(render(rows, Shown()))
  return int(any(not row.is_alive for row in rows))


def _show(
  table: 'job_table.JobTable',
  every_secs: float,
  read_key: Callable[[float], str],
) -> None:
  """Shows the table until a key ends it."""
  from rich import live as live_lib

  shown, rows, next_at = Shown(), table.read(), time.monotonic() + every_secs
  with live_lib.Live(
    render(rows, shown), auto_refresh=False, screen=sys.stdout.isatty()
  ) as live:
    while not shown.is_over:
      key = read_key(max(0.0, next_at - time.monotonic()))
      shown = shown.after(key, len(dataclasses.fields(rows[0])))
      if time.monotonic() >= next_at:
        rows = rows if shown.is_frozen else table.read()
        next_at = time.monotonic() + every_secs
      live.update(render(rows, shown), refresh=True)


@contextlib.contextmanager
def _keys(stdin: Any) -> Iterator[Callable[[float], str]]:
  """Yields a function that waits so many seconds for a key; '' if none came."""
  if not stdin.isatty():
    yield _read_nothing
    return
  before = termios.tcgetattr(stdin)

  def read(secs: float) -> str:
    ready, _, _ = select.select([stdin], [], [], secs)
    return os.read(stdin.fileno(), 1).decode(errors='replace') if ready else ''

  try:
    tty.setcbreak(stdin)
    yield read
  finally:
    termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _read_nothing(secs: float) -> str:
  time.sleep(secs)
  return ''


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps top',
    description='Shows a live table of the tasks of a running job.',
    epilog=f'Keys: {_KEYS}. Status: 0; with --once 1 if a task has not '
    'answered; 1 if no task is found; 2 for a wrong option.',
    allow_abbrev=False,
  )
  dump_command.add_job_options(parser)
  parser.add_argument(
    '--every_secs',
    type=option_types.positive_seconds,
    default=2.0,
    metavar='SECS',
    help='how often to ask all tasks, and the time over which rates are '
    '(default: 2)',
  )
  parser.add_argument(
    '--once', action='store_true', help='print one table and end'
  )
  parser.add_argument(
    '--json', action='store_true', help='with --once: print JSON'
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
