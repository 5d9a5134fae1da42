"""The batch script of a job, and what is refused before there is one."""

import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from tfps.launch import command as command_lib
from tfps.launch import job as job_lib
from tfps.launch import slurm

_FOLDER = pathlib.Path(__file__).parents[3] / 'launch' / 'slurm'
_PROGRAM = str(pathlib.Path(__file__).parents[2] / 'programs' / 'launched.py')
_JOB = job_lib.Job(('train.py',), num_workers=2, num_ps=2, max_restarts=3)
_GPUS = dataclasses.replace(_JOB, gpus_per_worker=1)
_REQUEUE = slurm.Request(requeue=True)
_PARTITIONS = dataclasses.replace(
  _REQUEUE,
  sbatch_ps=('--partition=cpu',),
  sbatch_workers=('--partition=gpu',),
)


def _render(job=_JOB, **request):
  return slurm.render(job, slurm.Request(**request), python='python')


def _directives(script):
  """What sbatch reads of each component."""
  lines = re.findall('^#SBATCH (.*)$', script, re.M)
  return [part.split('\n') for part in '\n'.join(lines).split('\nhetjob\n')]


@pytest.mark.parametrize(
  ('file', 'job', 'request_'),
  [('train', _JOB, _REQUEUE), ('heterogeneous', _GPUS, _PARTITIONS)],
)
def test_the_files_to_copy_are_what_is_rendered(file, job, request_):
  path = _FOLDER / f'{file}.sbatch'
  assert path.read_text() == slurm.render(job, request_, python='python')


def test_a_job_is_one_step_of_all_tasks():
  script = _render()
  assert _directives(script) == [
    ['--job-name=train', '--open-mode=append', '--ntasks=5']
  ]
  assert 'export TFPS_JOBS=chief:1,ps:2,worker:2\n' in script
  assert '(--resv-ports=5)' in script
  assert script.count('srun') == 1
  assert 'requeue' not in script


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    pytest.param(
      {'program': ('-m', 'pkg.train', '-m', '--b=c d')},
      "  python -m pkg.train -m '--b=c d'",
      id='module with arguments',
    ),
    pytest.param(
      {'program': ('-m', 'pkg.train')},
      '#SBATCH --job-name=pkg.train',
      id='name of a module',
    ),
    pytest.param(
      {'program': ('some/where.py',)},
      '#SBATCH --job-name=where',
      id='name of a file',
    ),
    pytest.param(
      {'num_chiefs': 0}, 'export TFPS_JOBS=ps:2,worker:2', id='no chief'
    ),
    pytest.param(
      {'num_evaluators': 1},
      'export TFPS_JOBS=chief:1,ps:2,evaluator:1,worker:2',
      id='evaluator',
    ),
    pytest.param(
      {'env': {'A': '$b "c"'}}, 'export A=\'$b "c"\'', id='environment'
    ),
    pytest.param(
      {'gpus_per_worker': 0}, 'export CUDA_VISIBLE_DEVICES=-1', id='no GPUs'
    ),
    pytest.param(
      {'log_dir': pathlib.Path('to day/x')}, "logs='to day/x'", id='log_dir'
    ),
    pytest.param(
      {'grace_secs': 2.5},
      '  --grace_secs=2.5 --silent_secs=10 --log_dir="$logs" --',
      id='grace',
    ),
    pytest.param(
      {'certificates': pathlib.Path('/to day')},
      '  --grace_secs=10 --silent_secs=10 --log_dir="$logs" '
      "'--secure_directory=/to day' --",
      id='certificates',
    ),
    pytest.param(
      {'certificates': pathlib.Path('/to day')},
      '  python -m tfps.security.enclose_command -- python train.py',
      id='enclosed',
    ),
    pytest.param(
      {'max_restarts': 7},
      '  python -m tfps.launch.task --max_restarts=7',
      id='restarts',
    ),
  ],
)
def test_a_job_is_in_the_script(changes, line):
  job = dataclasses.replace(_JOB, **changes)
  assert line in _render(job).splitlines()


def test_what_slurm_is_asked_for_is_in_the_script():
  script = _render(
    dataclasses.replace(_JOB, grace_secs=15.5),
    sbatch=('--time=60', '-p x'),
    requeue=True,
    silent_secs=0.0,
  )
  (options,) = _directives(script)
  rest = ['--time=60', '-p x', '--requeue', '--signal=TERM@36']
  assert options[-4:] == rest
  assert '--silent_secs=0 ' in script
  assert 'scontrol requeue "$SLURM_JOB_ID"' in script


@pytest.mark.parametrize(
  ('job', 'request_', 'others', 'workers'),
  [
    pytest.param(_GPUS, {}, [], ['--gpus-per-task=1'], id='GPUs'),
    pytest.param(
      _JOB,
      {'sbatch': ('-t 9',), 'sbatch_ps': ('-p cpu',)},
      ['-t 9', '-p cpu'],
      ['-t 9'],
      id='ps',
    ),
    pytest.param(
      _GPUS,
      {'sbatch': ('-t 9',), 'sbatch_workers': ('-p gpu', '-c 4')},
      ['-t 9'],
      ['-t 9', '--gpus-per-task=1', '-p gpu', '-c 4'],
      id='workers',
    ),
  ],
)
def test_workers_that_need_more_are_a_component(job, request_, others, workers):
  script = _render(job, **request_)
  common = ['--job-name=train', '--open-mode=append']
  assert _directives(script) == [
    [*common, '--ntasks=3', *others],
    ['--ntasks=2', *workers],
  ]
  # The same number in each, so that tasks know which are their component's.
  assert '(--resv-ports=3)' in script
  first, second = script[script.index('srun') :].split(' : ')
  assert '--het-group=0' in first
  assert '--het-group=1' in second.partition('status=')[0]


def test_only_workers_see_gpus_that_they_ask_for():
  first, second = _render(_GPUS).split(' : ')
  assert 'env CUDA_VISIBLE_DEVICES=-1 "${task[@]}"' in first
  assert 'CUDA_VISIBLE_DEVICES' not in second
  assert 'CUDA_VISIBLE_DEVICES' not in _render(sbatch_ps=('-p cpu',))


_SCRIPTS = [
  pytest.param(_render(), id='plain'),
  pytest.param(_render(_GPUS, requeue=True), id='heterogeneous'),
  pytest.param(
    _render(
      dataclasses.replace(
        _JOB,
        program=("it's.py", '$(a)', 'b c'),
        env={'A': '`x` $y'},
        log_dir=pathlib.Path('a "b" $c'),
      )
    ),
    id='words with signs',
  ),
]


@pytest.mark.parametrize('script', _SCRIPTS)
def test_the_script_is_one_for_bash(script):
  checked = subprocess.run(
    ['bash', '-n'], input=script, capture_output=True, text=True, timeout=30
  )
  assert (checked.returncode, checked.stderr) == (0, '')


@pytest.mark.skipif(
  not shutil.which('shellcheck'), reason='no shellcheck (apt-get install)'
)
@pytest.mark.parametrize('script', _SCRIPTS)
def test_shellcheck_finds_nothing(script):
  # 2016: what looks like a variable in the user's words is none.
  checked = subprocess.run(
    ['shellcheck', '--exclude=SC2016', '-'],
    input=script,
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert (checked.returncode, checked.stdout) == (0, '')


# Stand for Slurm's commands: the first is as Slurm's with all tasks here.
_COMMANDS = {
  'srun': 'printf "%s\\n" "$@" >srun.words; {task}exit {status}',
  'scontrol': '[[ $1 == requeue ]] && echo "$2" >requeued; echo "{config}"',
  'squeue': 'echo {state}',
}


def _run(script, folder, **facts):
  """Runs a script with such commands, and returns its status."""
  defaults = {'status': 0, 'task': '', 'config': '', 'state': 'RUNNING'}
  for name, text in _COMMANDS.items():
    path = folder / name
    path.write_text(f'#!/bin/bash\n{text.format(**defaults | facts)}\n')
    path.chmod(0o755)
  return subprocess.run(
    ['bash'],
    input=script,
    cwd=folder,
    env={'PATH': f'{folder}:/usr/bin:/bin', 'SLURM_JOB_ID': '12'},
    capture_output=True,
    text=True,
    timeout=30,
  )


@pytest.mark.parametrize(
  ('config', 'reserves'),
  [
    ('MpiDefault = none\nMpiParams = ports=12000-12999', True),
    ('MpiDefault = none\nMpiParams = (null)', False),
  ],
)
def test_ports_are_reserved_if_slurm_has_any(tmp_path, config, reserves):
  assert _run(_render(), tmp_path, config=config).returncode == 0
  words = (tmp_path / 'srun.words').read_text().split()
  assert ('--resv-ports=5' in words) == reserves
  assert '--kill-on-bad-exit=1' in words


@pytest.mark.parametrize(
  ('facts', 'status', 'is_requeued'),
  [
    pytest.param({}, 0, False, id='done'),
    pytest.param({'status': 1}, 1, False, id='srun itself failed'),
    pytest.param({'status': 143}, 143, True, id='preempted'),
    pytest.param(
      {'status': 143, 'state': 'COMPLETING'}, 143, False, id='cancelled'
    ),
    pytest.param(
      {'status': 143, 'task': 'echo ps:1 7 >logs/12/failure;'},
      7,
      False,
      id='a task failed',
    ),
  ],
)
def test_the_end_of_the_step_is_that_of_the_job(
  tmp_path, facts, status, is_requeued
):
  (tmp_path / 'logs' / '12').mkdir(parents=True)
  (tmp_path / 'logs' / '12' / 'failure').write_text('ps:0 9\n')  # an old one
  script = slurm.render(_JOB, _REQUEUE, python='python')
  ended = _run(script, tmp_path, **facts)
  assert ended.returncode == status, ended.stderr
  assert (tmp_path / 'requeued').exists() == is_requeued
  assert ('ps:1 failed with status 7.' in ended.stderr) == (status == 7)


def test_arguments_reach_the_program_as_they_are(tmp_path):
  words = ("it's", '$(a)', 'b  c', '*')
  job = dataclasses.replace(_JOB, program=('train.py', *words))
  assert _run(_render(job), tmp_path).returncode == 0
  seen = (tmp_path / 'srun.words').read_text().splitlines()
  assert seen[-6:] == ['python', 'train.py', *words]


def test_a_task_of_the_shell_that_submits_is_none_of_the_job(tmp_path):
  script = "export TF_CONFIG='{}'\n" + _render()
  task = 'echo "TF_CONFIG=$TF_CONFIG;$TFPS_JOBS" >task;'
  assert _run(script, tmp_path, task=task).returncode == 0
  told = (tmp_path / 'task').read_text()
  assert told == 'TF_CONFIG=;chief:1,ps:2,worker:2\n'


def test_cpus_that_sbatch_gets_are_the_steps_too(tmp_path):
  script = 'export SLURM_CPUS_PER_TASK=4\n' + _render()
  assert _run(script, tmp_path).returncode == 0
  words = (tmp_path / 'srun.words').read_text().split()
  assert '--cpus-per-task=4' in words


def test_a_dry_run_prints_the_script(capsys):
  words = ['--engine=slurm', '--dry_run', '--sbatch=--partition=p', _PROGRAM]
  assert command_lib.main([*words, '--steps=1']) == 0
  script = capsys.readouterr().out
  assert script.startswith('#!/bin/bash\n')
  assert '#SBATCH --partition=p\n' in script
  assert f'{shlex.quote(_PROGRAM)} --steps=1\n' in script


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    pytest.param(
      ['--sbatch=partition=x'],
      '--sbatch=partition=x: this is no option of sbatch. Write it as in',
      id='no option',
    ),
    pytest.param(
      ['--sbatch_ps=--comment=a\nb'], '--sbatch_ps=--comment=a', id='two lines'
    ),
    pytest.param(
      ['--sbatch_workers=--ntasks=3'],
      '--sbatch_workers=--ntasks=3: the script says this itself',
      id='number of tasks',
    ),
    pytest.param(['--sbatch=-n3'], '--sbatch=-n3: the script says', id='n'),
    pytest.param(['--env=A-B=c'], '--env=A-B=...: a shell has', id='name'),
    pytest.param(['--preload=os'], '--preload is not for', id='preload'),
    pytest.param(['--chief_ends_job'], '--chief_ends_job is not', id='chief'),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    command_lib.main(['--engine=slurm', '--dry_run', *words, _PROGRAM])
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err


def _submit(folder, monkeypatch, sbatch):
  """Submits a job to an sbatch that is a line of a shell."""
  (folder / 'sbatch').write_text(f'#!/bin/bash\n{sbatch}\n')
  (folder / 'sbatch').chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}:/usr/bin:/bin')
  return command_lib.main(['--engine=slurm', _PROGRAM])


def test_a_submitted_job_is_named_with_its_logs(tmp_path, monkeypatch, capsys):
  sbatch = f'cat >{tmp_path}/got; [[ $1 == --parsable ]] && echo "12;here"'
  assert _submit(tmp_path, monkeypatch, sbatch + ' || true') == 0
  said = capsys.readouterr().out
  for word in ('job 12.', 'slurm-12.out', 'logs/12/ps-0.log'):
    assert word in said
  assert '#SBATCH --ntasks=3\n' in (tmp_path / 'got').read_text()


def test_a_job_that_waits_for_its_nodes_is_submitted(tmp_path, monkeypatch):
  sbatch = (
    '[[ $1 == --parsable ]] && echo 12 && exit; '
    'echo "allocation failure: Required node not available (down)" >&2; exit 1'
  )
  assert _submit(tmp_path, monkeypatch, sbatch) == 0


def test_what_sbatch_says_against_a_job_is_told(tmp_path, monkeypatch, capsys):
  with pytest.raises(SystemExit):
    _submit(tmp_path, monkeypatch, 'echo no such nodes >&2; exit 1')
  said = capsys.readouterr().err
  assert 'the job of 1 chief, 1 ps, 1 worker: no such nodes' in said


def test_an_sbatch_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(SystemExit):
    command_lib.main(['--engine=slurm', _PROGRAM])
  assert 'sbatch is not in PATH' in capsys.readouterr().err


def test_an_sbatch_that_does_not_answer_is_named(
  tmp_path, monkeypatch, capsys, set_timeouts
):
  set_timeouts(command_secs=0.2)
  with pytest.raises(SystemExit):
    _submit(tmp_path, monkeypatch, 'exec sleep 60')
  assert 'no answer within 0.2 seconds' in capsys.readouterr().err
