"""Workers that come while others train."""

import contextlib

import pytest
import tensorflow as tf

from tests import waiting
from tests.recovery import losses
import tfps
from tfps import testing
from tfps.testing.chaos import progress

pytestmark = pytest.mark.slow


class Joined:
  """A listener that has the events, and a hook that acts at a step."""

  def __init__(self, act):
    self._act = act
    self._has_acted = False
    self.events = []

  def __call__(self, event):
    self.events.append((event.kind, event.tasks))

  def hook(self, progress):
    if not self._has_acted and progress.step >= 50:
      self._has_acted = True
      self._act()


def of_worker(context):
  """An endless dataset whose elements tell which worker has it."""
  mine = tf.data.Dataset.from_tensors(context.input_pipeline_id)
  return mine.repeat()


def test_a_worker_joins_and_the_first_one_leaves(tmp_path):
  with testing.ProcessCluster(1, 1) as processes:

    def act():
      processes.add_worker()
      waiting.until(lambda: ('joined', ('worker:1',)) in joined.events)
      processes.terminate('worker', 0)
      assert processes.wait('worker', 0, timeout_secs=30) == 143

    joined = Joined(act)
    strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      recovery=tfps.Recovery(tmp_path, on_event=joined),
    )
    with strategy.scope():
      steps_by_worker = tf.Variable(tf.zeros([2], tf.int64))

    def step(index):
      steps_by_worker.assign_add(tf.one_hot(index, 2, dtype=tf.int64))

    with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
      coordinator.train(step, of_worker, steps=300, hooks=[joined.hook])
      assert coordinator.num_workers == 2
      first, second = steps_by_worker.numpy()
      assert first >= 50
      assert second >= 100
      assert first + second == 300
    assert processes.wait('worker', 1, timeout_secs=60) == 0


@contextlib.contextmanager
def training(job, program):
  """A worker and a ps, of whom one job runs a program, which has begun."""
  with testing.ProcessCluster(
    1, 1, commands={job: program}, preload=['tensorflow', 'keras']
  ) as processes:
    processes.wait_for_line(job, 0, 'at ', timeout_secs=60)
    yield processes


def test_a_worker_that_joined_is_found_by_the_next_chief(tmp_path):
  program = losses.campaign('fit', tmp_path, 1_000_000)
  with training('chief', program) as processes:
    processes.add_worker()
    waiting.until(lambda: num_joined(processes) == 1, timeout_secs=60)
    processes.restart('chief', 0)
    waiting.until(lambda: num_joined(processes) == 2, timeout_secs=60)
    processes.kill('worker', 0)
    later = last_step(processes) + 200
    waiting.until(lambda: last_step(processes) > later, timeout_secs=60)


def num_joined(processes):
  return processes.log('chief', 0).count('Back, or new: worker:1.')


def last_step(processes):
  step, _ = progress.numbers(processes.log('chief', 0), 'at')[-1]
  return step


def test_a_worker_joins_those_that_run_their_own_programs(tmp_path):
  program = losses.campaign('between_graph', tmp_path, 1_000)
  with training('worker', program) as processes:
    processes.add_worker()
    processes.wait_for_line('worker', 1, 'at ', timeout_secs=60)
    for index in range(2):
      assert processes.wait('worker', index, timeout_secs=120) == 0
    least, most, step = losses.counted(processes.log('worker', 0))
    assert least == most == step >= 1_000
