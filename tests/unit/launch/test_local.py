"""What the launcher is told, and what it makes of it."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tfps.launch import command as command_lib

_PROGRAMS = pathlib.Path(__file__).parents[2] / 'programs'
_PROGRAM = str(_PROGRAMS / 'launched.py')


@pytest.mark.parametrize(
  ('words', 'expected'),
  [
    pytest.param([], [], id='none'),
    pytest.param(['a', '--num_ps=7'], ['a', '--num_ps=7'], id='options'),
    pytest.param(['--', '--b'], ['--b'], id='dashes'),
    pytest.param(['--', 'a', '--', 'b'], ['a', '--', 'b'], id='more dashes'),
    pytest.param(['-m', 'x'], ['-m', 'x'], id='m'),
  ],
)
@pytest.mark.parametrize('as_module', [False, True], ids=['file', 'module'])
def test_what_follows_the_program_is_its_own(
  capsys, words, expected, as_module
):
  run = ['-m', 'launched'] if as_module else [_PROGRAM]
  assert command_lib.main(['--dry_run', '--num_ps=1', *run, *words]) == 0
  for command in capsys.readouterr().out.splitlines()[1::2]:
    _, _, program = command.partition(f' {sys.executable} ')
    assert shlex.split(program) == [*run, *expected]


def test_the_command_of_an_evaluator_is_printed(capsys):
  assert command_lib.main(['--dry_run', '--num_evaluators=1', _PROGRAM]) == 0
  commands = capsys.readouterr().out.splitlines()
  assert commands[0::2] == [
    '# chief:0',
    '# ps:0',
    '# worker:0',
    '# evaluator:0',
  ]
  (setting,) = [w for w in shlex.split(commands[-1]) if 'TF_CONFIG' in w]
  config = json.loads(setting.partition('=')[2])
  assert config['task'] == {'type': 'evaluator', 'index': 0}
  assert set(config['cluster']) == {'chief', 'ps', 'worker'}


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    pytest.param([], 'no program', id='nothing'),
    pytest.param(['--'], 'no program', id='only dashes'),
    pytest.param(
      ['python', 'train.py'], 'leave out python, and give', id='python'
    ),
    pytest.param(['-m'], 'no program', id='no module'),
    pytest.param(['no.py'], "'no.py' does not exist", id='no such program'),
    pytest.param(
      ['--num_workers=0', _PROGRAM], "'0' is not 1, 2, 3", id='no worker'
    ),
    pytest.param(['--num_workers=x', _PROGRAM], "'x'", id='no number'),
    pytest.param(['--num_chiefs=2', _PROGRAM], 'choose from', id='two chiefs'),
    pytest.param(['--num_evaluators=2', _PROGRAM], 'choose', id='evaluators'),
    pytest.param(['--max_restarts=-1', _PROGRAM], "'-1'", id='restarts'),
    pytest.param(['--grace_secs=inf', _PROGRAM], "'inf'", id='endless'),
    pytest.param(['--grace_secs=soon', _PROGRAM], "'soon'", id='soon'),
    pytest.param(['--env=A', _PROGRAM], "'A' is not NAME=VALUE", id='env'),
    pytest.param(['--env=TF_CONFIG={}', _PROGRAM], 'TF_CONFIG', id='TF_CONFIG'),
    pytest.param(
      ['--chief_ends_job', '--num_chiefs=0', _PROGRAM],
      'needs --num_chiefs=1',
      id='no chief to end',
    ),
    pytest.param(
      ['--preload=os,nowhere', _PROGRAM], "no module 'nowhere'", id='preload'
    ),
    pytest.param(['--num_pss=1', _PROGRAM], '--num_pss', id='unknown'),
    pytest.param(
      ['--metrics_port=x', _PROGRAM], "--metrics_port: 'x'", id='no port'
    ),
    pytest.param(
      ['--metrics_port=65535', _PROGRAM],
      "--metrics_port of ps:0: '127.0.0.1:65536'",
      id='too few ports',
    ),
    pytest.param(
      ['--metrics_port=9400', '--engine=slurm', _PROGRAM],
      '--env=TFPS_METRICS_PORT=0.0.0.0:9400',
      id='metrics elsewhere',
    ),
    pytest.param(
      ['--dashboard_port=x', _PROGRAM], "--dashboard_port: 'x'", id='no page'
    ),
    pytest.param(
      ['--dashboard_port=0.0.0.0:9500', _PROGRAM],
      "--dashboard_port: '0.0.0.0:9500' would show the page to other machines",
      id='page for everybody',
    ),
    pytest.param(
      ['--dashboard_port=9500', '--engine=slurm', _PROGRAM],
      '--env=TFPS_DASHBOARD_PORT=9500',
      id='page elsewhere',
    ),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    command_lib.main(words)
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err


def test_the_page_tells_every_option(capsys):
  with pytest.raises(SystemExit):
    command_lib.main(['--help'])
  options = set(re.findall(r'--[a-z_]+', capsys.readouterr().out))
  page = pathlib.Path(__file__).parents[3] / 'docs' / 'launch.md'
  assert options - {'--help'} <= set(re.findall(r'--[a-z_]+', page.read_text()))


@pytest.mark.parametrize('host', ['', '0.0.0.0:'])
def test_each_task_has_a_port_for_its_metrics(capsys, host):
  options = ['--dry_run', '--num_evaluators=1', f'--metrics_port={host}9400']
  assert command_lib.main([*options, _PROGRAM]) == 0
  found = re.findall(r'TFPS_METRICS_PORT=(\S+)', capsys.readouterr().out)
  host = host or '127.0.0.1:'
  assert found == [f'{host}{9400 + i}' for i in range(4)]


@pytest.mark.parametrize('num_chiefs', [1, 0])
def test_the_chief_alone_has_a_port_for_the_page(capsys, num_chiefs):
  options = ['--dry_run', f'--num_chiefs={num_chiefs}', '--dashboard_port=9500']
  assert command_lib.main([*options, _PROGRAM]) == 0
  commands = capsys.readouterr().out.split('# ')
  (found,) = [each for each in commands if 'TFPS_DASHBOARD_PORT' in each]
  assert found.startswith('chief:0' if num_chiefs else 'worker:0')
  assert 'TFPS_DASHBOARD_PORT=127.0.0.1:9500' in found


def test_each_task_has_a_port(capsys):
  sizes = ['--num_workers=30', '--num_ps=20']
  assert command_lib.main(['--dry_run', *sizes, _PROGRAM]) == 0
  addresses = {
    address
    for jobs in _clusters(capsys.readouterr().out)
    for addresses in jobs.values()
    for address in addresses
  }
  assert len(addresses) == 51


def test_without_a_chief_worker_0_is_one(capsys):
  assert command_lib.main(['--dry_run', '--num_chiefs=0', _PROGRAM]) == 0
  clusters = _clusters(capsys.readouterr().out)
  assert [set(jobs) for jobs in clusters] == 2 * [{'ps', 'worker'}]


def _clusters(printed):
  """The jobs in the TF_CONFIG of each printed command."""
  commands = map(shlex.split, printed.splitlines()[1::2])
  settings = [w for words in commands for w in words if 'TF_CONFIG' in w]
  return [json.loads(s.partition('=')[2])['cluster'] for s in settings]


def test_the_launcher_does_not_import_tensorflow():
  program = (
    'import sys; from tfps import cli, launch; print(*sys.modules, sep="\\n")'
  )
  output = subprocess.check_output([sys.executable, '-c', program], text=True)
  assert 'tfps.launch' in output.split()
  assert not {'tensorflow', 'keras', 'grpc'} & set(output.split())


def test_tasks_may_be_left_alone():
  with pytest.raises(SystemExit):
    command_lib.main(['--silent_secs=-1', 'x.py'])


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    pytest.param(
      ['--engine=slurm', '--hosts=a:9'],
      '--hosts is for --engine=hosts, and the engine is slurm',
      id='hosts to Slurm',
    ),
    pytest.param(
      ['--requeue'],
      '--requeue is for --engine=slurm, and the engine is local',
      id='Slurm to none',
    ),
    pytest.param(
      ['--hosts=a:9', '--namespace=b'],
      '--namespace is for --engine=kubernetes, and the engine is hosts',
      id='Kubernetes to hosts',
    ),
  ],
)
def test_options_of_another_engine_are_refused(capsys, words, complaint):
  with pytest.raises(SystemExit) as end:
    command_lib.main([*words, '--dry_run', _PROGRAM])
  assert end.value.code == 2
  assert complaint in capsys.readouterr().err
