"""The command `tfps plan`."""

import subprocess
import sys

import pytest

from tfps import cli
from tfps.plan import command
from tfps.plan import reports

_NEEDED = (
  '--num_workers=4',
  '--num_ps=2',
  '--mbit_per_sec=1000',
  '--compute_ms=50',
)
_MODEL = '--model_bytes=10M'


def _lines(capsys, *args):
  assert command.main([*_NEEDED, _MODEL, *args]) == 0
  return capsys.readouterr().out.splitlines()


def _value(lines, name):
  (found,) = (line for line in lines if line.startswith(name))
  return found.removeprefix(name).strip()


def test_it_is_a_subcommand(capsys):
  assert cli.main(['plan', *_NEEDED, _MODEL, '--no-advice']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert _value(lines, 'parameters') == '10 MB'
  assert _value(lines, 'the fullest ps holds') == '5 MB'
  assert lines[-1].startswith('and ')


def test_examples_are_told(capsys):
  lines = _lines(
    capsys,
    '--no-advice',
    '--batch=32',
    '--example_bytes=100K',
    '--total_bytes=1T',
  )
  steps = float(_value(lines, 'steps of all workers').split()[0])
  examples = float(_value(lines, 'examples  ').split()[0].replace(',', ''))
  assert examples == pytest.approx(32 * steps, rel=0.01)
  hours = float(_value(lines, 'all examples once').split()[0])
  assert hours == pytest.approx(1e7 / examples / 3600, rel=0.01)
  assert 'of its link' in _value(lines, 'input of each worker')


def test_tables_hosts_and_racks_can_be_given(capsys):
  hosts = [f'--host_of=worker:{i}=w' for i in range(4)]
  racks = [f'--rack_of={host}=r{host}' for host in ('w', 'ps-0', 'ps-1')]
  lines = _lines(
    capsys,
    '--no-advice',
    '--table=1000,16,100',
    '--rack_mbit_per_sec=500',
    *hosts,
    *racks,
  )
  assert any(line.startswith('rack rw, ') for line in lines)


def test_a_model_may_have_tables_alone(capsys):
  tables = ['--table=1000,16,100', '--table=2000,16,100']
  assert command.main([*_NEEDED, '--no-advice', *tables]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert _value(lines, 'parameters') == '192 kB'


def test_advice_names_what_would_help(capsys):
  lines = _lines(capsys)
  advice = lines[lines.index('Advice, by an estimate that is less exact:') :]
  assert any(line.lstrip().startswith('float16: ') for line in advice)


@pytest.mark.exhaustive
def test_codecs_take_bytes_off_links(capsys):
  def sent(*args):
    lines = _lines(capsys, '--no-advice', *args)
    (line,) = (x for x in lines if x.startswith('host ps-0, up'))
    return float(line.split()[3].replace(',', ''))

  assert sent('--pull=float16') == pytest.approx(sent() / 2, rel=0.01)


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (['--num_ps=0'], "'0' is not 1, 2, 3"),
    (['--model_bytes=many'], "'many' is no number of bytes such as 100M"),
    (['--mbit_per_sec=0'], "'0' is not more than 0"),
    (['--compute_ms=inf'], "'inf' is no number from 0"),
    (['--table=1,2'], "'1,2' is not ROWS,WIDTH,USED"),
    (['--host_of=ps:0'], "'ps:0' is not NAME=VALUE"),
    (['--table=10,2,11'], 'rows is 11, but the shape'),
    (['--backup_workers=1'], 'backup_workers is 1, but in mode async'),
    (['--host_of=ps:9=a'], "host_of names 'ps:9'"),
    (['--model_bytes=0'], 'no parameters. Give --model_bytes, --table or both'),
    (['--example_bytes=1K'], '--example_bytes needs --batch'),
    (['--total_bytes=1G', '--batch=2'], '--total_bytes needs --example_bytes'),
    (['--prefetc=1'], 'unrecognized arguments: --prefetc=1'),
  ],
)
def test_what_cannot_be_is_an_error(capsys, args, message):
  with pytest.raises(SystemExit) as caught:
    command.main([*_NEEDED, _MODEL, *args])
  assert caught.value.code == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ('number', 'text'), [(1e12, '1 TB'), (5e6, '5 MB'), (12, '12 B')]
)
def test_bytes_are_told_in_round_numbers(number, text):
  assert reports._bytes(number) == text


def test_it_runs_as_a_module():
  done = subprocess.run(
    [sys.executable, '-m', 'tfps.plan', '--help'],
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  assert done.stdout.startswith('usage: tfps plan')
