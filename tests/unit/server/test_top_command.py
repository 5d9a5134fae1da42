"""The command `tfps top`: its keys, its order, its options."""

import argparse
import dataclasses
import io
import json
import os
import pty
import sys

import pytest
from rich import console

from tfps.server import job_table
from tfps.server import top_command

_ROWS = [
  job_table.Row('chief:0', 'alive', memory_bytes=1_500_000),
  job_table.Row('worker:0', 'alive', 'ff', 12.34, 0, doing='executes'),
  job_table.Row('worker:1', 'is unreachable', 'fe', 5.0, 70, event='lost'),
]


def _after(keys):
  shown = top_command.Shown()
  for key in keys:
    shown = shown.after(key, len(job_table.COLUMNS))
  return shown


def _text(shown):
  out = console.Console(width=200, record=True, file=io.StringIO())
  out.print(top_command.render(_ROWS, shown))
  return out.export_text()


@pytest.mark.parametrize(
  ('keys', 'order'),
  [
    pytest.param('', [0, 1, 2], id='as jobs are'),
    pytest.param('r', [2, 1, 0], id='reversed'),
    pytest.param('sss', [2, 1, 0], id='by steps'),
    pytest.param('sssr', [1, 2, 0], id='by steps, most first'),
    pytest.param('ssssr', [2, 1, 0], id='by lag, most first'),
    pytest.param('s' * len(job_table.COLUMNS), [0, 1, 2], id='all columns'),
    pytest.param('xyz', [0, 1, 2], id='unknown keys'),
  ],
)
def test_keys_choose_the_order(keys, order):
  found = top_command.sort(_ROWS, _after(keys))
  assert found == [_ROWS[index] for index in order]


def test_keys_freeze_and_end():
  assert not _after('').is_frozen
  assert _after('f').is_frozen
  assert not _after('ff').is_frozen
  assert _after('q').is_over


def test_a_table_shows_all_and_what_it_is_sorted_by():
  text = _text(_after('sssrf'))
  assert 'steps/s v' in text
  assert '(frozen)' in text
  for value in ('1.5 MB', '12.3', 'is unreachable', '70', 'executes', 'lost'):
    assert value in text


def test_keys_come_from_a_terminal_that_is_left_as_it_was():
  import termios

  leader, follower = pty.openpty()
  with os.fdopen(follower) as stdin:
    before = termios.tcgetattr(follower)
    with top_command._keys(stdin) as read_key:
      assert read_key(0.0) == ''
      os.write(leader, b'f')
      assert read_key(30.0) == 'f'
      assert termios.tcgetattr(follower) != before
    assert termios.tcgetattr(follower) == before
  os.close(leader)


def test_without_a_terminal_there_are_no_keys():
  with open(os.devnull) as stdin, top_command._keys(stdin) as read_key:
    assert read_key(0.0) == ''


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--json'], '--json needs --once.'),
    (['--address=x'], 'its port is missing'),
    (['--every_secs=0'], "'0' is no number of seconds above 0"),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    top_command.main(words)
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err


class _Table:
  """A job whose rows are known."""

  def __init__(self, rows):
    self.rows = rows

  def read(self):
    return self.rows


@pytest.mark.parametrize(
  ('rows', 'status'),
  [
    pytest.param(_ROWS[:2], 0, id='all have answered'),
    pytest.param(_ROWS, 1, id='one has not'),
  ],
)
def test_rows_are_printed_once_as_json(capsys, rows, status):
  options = argparse.Namespace(every_secs=0.0, json=True)
  assert top_command._show_once(_Table(rows), options) == status
  found = json.loads(capsys.readouterr().out)
  assert found == {'tasks': [dataclasses.asdict(row) for row in rows]}
  assert found['tasks'][1]['steps_per_sec'] == 12.34


def test_each_task_is_a_line_where_there_is_no_terminal(capsys):
  row = dataclasses.replace(_ROWS[0], event='lost ' * 40)
  options = argparse.Namespace(every_secs=0.0, json=False)
  assert top_command._show_once(_Table([row, *_ROWS[1:]]), options) == 1
  lines = capsys.readouterr().out.splitlines()
  tasks = [line for line in lines if any(r.task in line for r in _ROWS)]
  assert len(tasks) == len(_ROWS)
  assert row.event.strip() in tasks[0]


def test_without_rich_the_extra_is_named(capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'rich', None)
  with pytest.raises(SystemExit):
    top_command.main(['--address=localhost:1'])
  assert 'pip install "tfps[top]"' in capsys.readouterr().err


def test_a_job_that_is_not_there_is_named(capsys):
  assert top_command.main(['--once', '--json', '--address=localhost:1']) == 1
  assert capsys.readouterr().err == (
    'tfps top: the server at localhost:1 is unreachable.\n'
  )
