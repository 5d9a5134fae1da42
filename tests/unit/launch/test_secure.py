"""`tfps launch --secure`: what it asks for, and what tasks then run."""

import pathlib
import shlex
import sys

import pytest

from tests.support import enclosures
from tfps import security
from tfps.cluster import spec as spec_lib
from tfps.launch import command as command_lib

_PROGRAM = str(pathlib.Path(__file__).parents[2] / 'programs' / 'launched.py')


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--engine=slurm'], '--engine=slurm needs --secure_directory=DIR'),
    (['--engine=ray'], '--engine=ray needs --secure_directory=DIR'),
    (['--image=x', '--dry_run'], '--dry_run needs --secure_directory=DIR'),
    (['--image=x'], '--engine=kubernetes needs --secure_directory=DIR'),
    (['--preload=keras'], '--preload forks tasks from a process outside'),
    (['--dry_run'], '--dry_run needs --secure_directory=DIR'),
    (['--hosts=h1,h2'], '--engine=hosts needs --secure_directory=DIR'),
  ],
)
def test_what_goes_without_it_is_said(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    command_lib.main(['--secure', *words, _PROGRAM])
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_extra(capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'cryptography', None)
  monkeypatch.delitem(sys.modules, 'tfps.security.authority', raising=False)
  monkeypatch.delattr(security, 'authority', raising=False)
  with pytest.raises(SystemExit) as caught:
    command_lib.main(['--secure', _PROGRAM])
  assert caught.value.code == 2
  said = capsys.readouterr().err
  assert '--secure: Certificates need cryptography' in said
  assert 'pip install "tfps[secure]"' in said


def test_a_task_without_a_certificate_is_named(capsys, tmp_path):
  folder = enclosures.make(tmp_path / 'certs', enclosures.PS)
  with pytest.raises(SystemExit) as caught:
    command_lib.main([f'--secure_directory={folder}', _PROGRAM])
  assert caught.value.code == 2
  assert f"cert is '{folder}/chief-0.pem', which" in capsys.readouterr().err


@pytest.mark.parametrize('engine', ['local', 'hosts'])
def test_each_task_is_enclosed_with_its_certificate(capsys, tmp_path, engine):
  chief = spec_lib.Task('chief', 0)
  folder = enclosures.make(
    tmp_path / 'certs', chief, enclosures.PS, enclosures.WORKER
  )
  hosts = ['--hosts=h1:2,h2'] if engine == 'hosts' else []
  words = [f'--secure_directory={folder}', '--dry_run', *hosts, _PROGRAM]
  assert command_lib.main(words) == 0
  commands = capsys.readouterr().out.splitlines()[1::2]
  assert len(commands) == 3
  for stem, line in zip(('chief', 'ps', 'worker'), commands, strict=True):
    run = shlex.split(line)
    assert f'TFPS_KEY={folder}/{stem}-0.key' in run
    module = run.index('tfps.security.enclose_command')
    assert run[module - 1 : module + 2 : 2] == ['-m', '--']
    assert run[-1] == _PROGRAM
