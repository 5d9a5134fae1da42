from importlib import metadata
import pathlib
import subprocess
import sys

import pytest

from tfps import cli

_PROGRAM = str(pathlib.Path(__file__).parents[2] / 'programs' / 'launched.py')
_SCRIPT = pathlib.Path(sys.executable).with_name('tfps')


def test_launch_is_a_subcommand(capsys):
  assert cli.main(['launch', '--dry_run', '--num_ps=2', _PROGRAM, '--x']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[::2] == ['# chief:0', '# ps:0', '# ps:1', '# worker:0']
  assert all(line.endswith(f'{_PROGRAM} --x') for line in lines[1::2])


@pytest.mark.parametrize('command', ['launch', 'doctor', 'health', 'plan'])
def test_help_of_a_subcommand_is_its_own(capsys, command):
  with pytest.raises(SystemExit) as caught:
    cli.main([command, '--help'])
  assert caught.value.code == 0
  assert capsys.readouterr().out.startswith(f'usage: tfps {command}')


def test_help_lists_the_subcommands(capsys):
  with pytest.raises(SystemExit):
    cli.main(['--help'])
  shown = capsys.readouterr().out
  assert '  launch  ' in shown
  assert '  doctor  ' in shown
  assert '  health  ' in shown
  assert '  plan  ' in shown


@pytest.mark.parametrize('words', [[], ['lunch'], ['--lunch']])
def test_anything_else_is_an_error(capsys, words):
  with pytest.raises(SystemExit) as caught:
    cli.main(words)
  assert caught.value.code == 2
  assert 'usage: tfps' in capsys.readouterr().err


def test_the_script_is_installed():
  output = subprocess.check_output([_SCRIPT, '--version'], text=True)
  assert output == f'tfps {metadata.version("tfps")}\n'


def test_the_script_passes_the_status_on(tmp_path):
  command = [_SCRIPT, 'launch', _PROGRAM, 'ps=fail']
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
  assert done.returncode == 7
