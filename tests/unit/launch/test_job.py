"""The numbers of a job, and what each of its tasks sees."""

import pytest

from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib


@pytest.mark.parametrize(
  ('program', 'numbers', 'complaint'),
  [
    pytest.param((), {}, 'no program', id='program'),
    pytest.param(('a',), {'num_workers': 0}, 'num_workers is 0', id='workers'),
    pytest.param(('a',), {'num_ps': -1}, 'num_ps is -1', id='ps'),
    pytest.param(('a',), {'num_chiefs': 2}, 'num_chiefs is 2', id='chiefs'),
    pytest.param(('a',), {'max_restarts': -1}, 'less than 0', id='restarts'),
  ],
)
def test_a_wrong_number_is_refused(program, numbers, complaint):
  with pytest.raises(ValueError, match=complaint):
    job_lib.Job(program, **numbers)


def test_an_evaluator_is_a_task_but_not_of_the_cluster():
  job = job_lib.Job(('a',), num_chiefs=0, num_evaluators=1)
  assert list(map(str, job.tasks())) == ['ps:0', 'worker:0', 'evaluator:0']
  assert job.sizes() == {'ps': 1, 'worker': 1}


@pytest.mark.parametrize(
  ('task', 'place', 'visible', 'seen'),
  [
    pytest.param('worker:1', 1, None, '2,3', id='worker'),
    pytest.param('worker:1', 1, '4,5,6,7', '6,7', id='of those it may use'),
    pytest.param('ps:0', 0, '4,5', '-1', id='ps'),
    pytest.param('chief:0', 0, None, '-1', id='chief'),
  ],
)
def test_a_worker_sees_its_gpus_and_others_none(task, place, visible, seen):
  job = job_lib.Job(('a',), gpus_per_worker=2)
  env = {'CUDA_VISIBLE_DEVICES': visible} if visible else {}
  found = job.visible_gpus(spec_lib.Task.parse(task), place=place, env=env)
  assert found == {'CUDA_VISIBLE_DEVICES': seen}


def test_without_a_number_of_gpus_nothing_is_hidden():
  task = spec_lib.Task('ps', 0)
  assert job_lib.Job(('a',)).visible_gpus(task, place=0, env={}) == {}


@pytest.mark.parametrize(
  ('visible', 'number'),
  [
    pytest.param('0,1,2', 3, id='some'),
    pytest.param('', 0, id='empty'),
    pytest.param('-1', 0, id='hidden'),
    pytest.param('NoDevFiles', 0, id='hidden by Slurm'),
    pytest.param('4,-1,5,6,7', 1, id='some hidden'),
  ],
)
def test_too_few_gpus_are_counted(visible, number):
  job = job_lib.Job(('a',), gpus_per_worker=2)
  complaint = rf'={visible} names {number} GPUs, .* worker:1 need 4'
  with pytest.raises(ValueError, match=complaint):
    job.visible_gpus(
      spec_lib.Task('worker', 1),
      place=1,
      env={'CUDA_VISIBLE_DEVICES': visible},
    )


@pytest.mark.parametrize('visible', ['', '-1', '0', None])
def test_a_worker_of_no_gpus_sees_none(visible):
  job = job_lib.Job(('a',), gpus_per_worker=0)
  env = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  found = job.visible_gpus(spec_lib.Task('worker', 1), place=1, env=env)
  assert found == {'CUDA_VISIBLE_DEVICES': '-1'}
