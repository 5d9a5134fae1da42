import importlib.util
import pickle
import subprocess
import sys

import pytest

from tfps import cli
from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib
from tfps.launch import ray
from tfps.launch import ray_placement

_NODES = [
  {
    'Alive': True,
    'NodeManagerAddress': '10.0.0.1',
    'Resources': {'CPU': 2.0, 'memory': 1e9},
  },
  {
    'Alive': False,
    'NodeManagerAddress': '10.0.0.2',
    'Resources': {'CPU': 64.0},
  },
]


def test_each_task_has_a_bundle_and_workers_have_gpus():
  job = job_lib.Job(('train.py',), num_workers=2, gpus_per_worker=1)
  assert ray_placement.bundles(job, 0.5) == [
    {'CPU': 0.5},
    {'CPU': 0.5},
    {'CPU': 0.5, 'GPU': 1},
    {'CPU': 0.5, 'GPU': 1},
  ]


def test_bundles_of_a_trial_are_those_of_its_run():
  assert ray.bundles(num_ps=2, num_chiefs=0, cpus_per_task=2) == 3 * [
    {'CPU': 2}
  ]


@pytest.mark.parametrize(
  ('wanted', 'given', 'indices'),
  [
    pytest.param([1, 1], [1, 1, 1], (1, 2), id='one for each'),
    pytest.param([1, 1], [1, 1], None, id='the first is in use'),
    pytest.param([1, 2], [1, 2, 1], (2, 1), id='in another order'),
    pytest.param([1, 2], [1, 2, 2], (2, 1), id='the larger one first'),
    pytest.param([2], [1, 1, 1, 1], None, id='none is large enough'),
    pytest.param([1], [1, 3, 1.5], (2,), id='the smallest that fits'),
  ],
)
def test_tasks_fit_into_the_bundles_behind_the_first(wanted, given, indices):
  found = ray_placement.fit(
    [{'CPU': cpus} for cpus in wanted], [{'CPU': cpus} for cpus in given]
  )
  assert found == indices


def test_a_bundle_without_gpus_does_not_fit_a_worker_with_one():
  wanted = [{'CPU': 1, 'GPU': 1}]
  assert ray_placement.fit(wanted, [{'CPU': 1}, {'CPU': 9}]) is None
  assert ray_placement.fit(wanted, [{'CPU': 1}, *wanted]) == (1,)


def test_a_lack_says_what_was_asked_and_what_there_is():
  wanted = [{'CPU': 1.5}, {'CPU': 1.5, 'GPU': 1}]
  assert ray_placement.lack(wanted, _NODES, {'CPU': 0.5}) == (
    'The Ray cluster has no room for 2 tasks, which reserve 3 CPUs and 1 GPUs '
    'in all: it has 1 node (10.0.0.1 with 2 CPUs and 0 GPUs), where 0.5 CPUs '
    'and 0 GPUs are free.'
  )


@pytest.mark.parametrize(
  ('program', 'options', 'complaint'),
  [
    ('train.py', {}, "program='train.py' is no program with arguments"),
    ((), {}, r'program=\(\) is no program'),
    (('gone.py',), {}, "'gone.py' does not exist in"),
    (print, {'num_workers': 0}, 'num_workers is 0'),
    (print, {'cpus_per_task': -1}, 'cpus_per_task is -1, less than 0'),
    (print, {'strategy': 'NEAR'}, "strategy is 'NEAR', not one of PACK, SPR"),
  ],
)
def test_wrong_arguments_are_named(program, options, complaint):
  with pytest.raises(ValueError, match=complaint):
    ray.run(program, **options)


@pytest.mark.skipif(
  importlib.util.find_spec('ray') is not None, reason='ray is installed'
)
def test_without_ray_the_extra_is_named():
  with pytest.raises(ImportError, match=r"pip install 'tfps\[ray\]'"):
    ray.run(print)


def test_dry_run_shows_what_each_task_reserves(capsys):
  words = ['--engine=ray', '--dry_run', '--gpus_per_worker=2', __file__, '--x']
  assert cli.main(['launch', *words]) == 0
  assert capsys.readouterr().out.splitlines() == [
    f'chief:0 CPU=1 python {__file__} --x',
    f'ps:0 CPU=1 python {__file__} --x',
    f'worker:0 CPU=1 GPU=2 python {__file__} --x',
  ]


def test_tasks_are_not_forked(capsys):
  words = ['--engine=ray', '--preload=tensorflow', __file__]
  with pytest.raises(SystemExit) as caught:
    cli.main(['launch', *words])
  assert caught.value.code == 2
  assert '--preload forks tasks on this machine' in capsys.readouterr().err


def test_launching_imports_no_engine():
  program = (
    'import sys; import tfps.launch.command; '
    "print({'pyspark', 'ray', 'tensorflow'} & set(sys.modules))"
  )
  found = subprocess.check_output([sys.executable, '-c', program], text=True)
  assert found == 'set()\n'


def test_a_failure_can_be_pickled():
  task = str(spec_lib.Task('ps', 1))
  error = pickle.loads(
    pickle.dumps(errors.TaskFailedError('why', task=task, status=7))
  )
  assert (str(error), error.task, error.status) == ('why', 'ps:1', 7)
