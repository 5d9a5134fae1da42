import threading

import pytest

import tfps
from tfps.cluster.spec import Task
from tfps.training import barriers
from tfps.variables import shared_variables

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=1)
_TASKS = [Task('chief', 0), Task('worker', 0), Task('worker', 1)]


@pytest.fixture
def of(tfps_cluster):
  """Makes the barriers of each task, as if it were a process of its own."""
  tfps.BetweenGraphStrategy(tfps_cluster.cluster)

  def make(task: Task, listed=_TASKS, joined=tuple) -> barriers.Barriers:
    shared = shared_variables.SharedVariables(
      is_chief=task.job == 'chief', timeout_secs=0.2, chief='chief:0'
    )
    return barriers.Barriers(
      shared, listed, task, lambda variable: None, joined=joined
    )

  return make


def _all_wait(
  each: list[barriers.Barriers], name: str, timeout_secs: float = 60
) -> list[str]:
  """What becomes of all tasks that come to a barrier, one after another."""
  outcomes: list[str] = []

  def wait(one: barriers.Barriers) -> None:
    try:
      one.wait(name, timeout_secs)
      outcomes.append('passed')
    except tfps.DeadlineError as error:
      outcomes.append(str(error))

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


def test_a_worker_too_many_is_named(of):
  with pytest.raises(ValueError, match=r'worker:1023, .* 1,023 workers\. Give'):
    of(Task('worker', 1023))


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


@pytest.mark.parametrize('num_before', [0, 2])
def test_a_worker_that_is_started_again_waits_on(of, num_before):
  name = f'after {num_before}'
  each = [of(task) for task in _TASKS]
  for _ in range(num_before):
    assert _all_wait(each, name) == ['passed'] * 3
  *others, killed = each
  outcomes = _all_wait([others[0], killed], name, 0.2)
  assert all('worker:0 did not come' in outcome for outcome in outcomes)
  again = of(_TASKS[2])
  with pytest.raises(tfps.DeadlineError, match='seconds, worker:0 did not'):
    again.wait(name, 0.2)
  others[1].wait(name, 0.2)  # the last one that was missing
  again = [others[0], others[1], again]
  assert _all_wait(again, name) == ['passed'] * 3


_LATE = Task('worker', 2)


def test_who_has_joined_passes_what_the_others_have_passed(of):
  each = [of(task) for task in _TASKS]
  late = of(_LATE, listed=[*_TASKS, _LATE])
  for _ in range(3):
    assert _all_wait(each, 'start') == ['passed'] * 3
  late.wait('start', 0.2)
  with pytest.raises(tfps.DeadlineError, match='chief:0, worker:0, worker:1'):
    late.wait('start', 0.2)  # another one


def test_who_has_joined_is_waited_for_as_long_as_it_lives(of):
  alive = [_LATE]
  each = [of(task, joined=lambda: alive) for task in _TASKS]
  late = of(_LATE, listed=[*_TASKS, _LATE], joined=lambda: alive)
  assert _all_wait(each[:1], 'once', 0.5) == [
    "After 0.5 seconds, worker:0, worker:1 did not come to the barrier 'once'."
  ]
  assert set(_all_wait(each, 'end', 1.5)) == {
    "After 1.5 seconds, worker:2 did not come to the barrier 'end'."
  }
  assert _all_wait([*each, late], 'end') == ['passed'] * 4
  alive.clear()
  assert _all_wait(each, 'end') == ['passed'] * 3
