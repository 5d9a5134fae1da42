import threading

import pytest

import tfps
from tfps import barriers
from tfps import shared_variables
from tfps.cluster import Task

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=1)
_TASKS = [Task('chief', 0), Task('worker', 0), Task('worker', 1)]


@pytest.fixture
def of(tfps_cluster):
  """Makes the barriers of each task, as if it were a process of its own."""
  tfps.BetweenGraphStrategy(tfps_cluster.cluster)

  def make(task: Task) -> barriers.Barriers:
    shared = shared_variables.SharedVariables(
      is_chief=task.job == 'chief', timeout_secs=0.2, chief='chief:0'
    )
    return barriers.Barriers(shared, _TASKS, task, lambda variable: None)

  return make


def _all_wait(each: list[barriers.Barriers], name: str) -> list[str]:
  """What becomes of all tasks that come to a barrier, one after another."""
  outcomes: list[str] = []

  def wait(one: barriers.Barriers) -> None:
    one.wait(name, 20)
    outcomes.append('passed')

  threads = [threading.Thread(target=wait, args=(one,)) for one in each]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return outcomes


def test_everyone_passes_once_all_have_come_again_and_again(of):
  each = [of(task) for task in _TASKS]
  for _ in range(3):
    assert _all_wait(each, 'epoch') == ['passed'] * 3


def test_a_barrier_names_who_has_not_come(of):
  with pytest.raises(
    tfps.DeadlineError,
    match=r'After 0\.2 seconds, worker:0, worker:1 did not come to .*epoch',
  ):
    of(_TASKS[0]).wait('epoch', 0.2)


def test_a_barrier_names_the_chief_that_has_not_come(of):
  with pytest.raises(tfps.DeadlineError, match=r'chief:0 has not .*epoch'):
    of(_TASKS[1]).wait('epoch', 0.2)


def test_others_wait_for_the_chief_but_it_does_not_wait(of):
  chief, worker = of(_TASKS[0]), of(_TASKS[1])
  with pytest.raises(tfps.DeadlineError, match=r'chief:0 has not .*restored'):
    worker.wait_for_chief('restored', 0.2)
  chief.wait_for_chief('restored', 0.2)
  of(_TASKS[2]).wait_for_chief('restored', 0.2)
