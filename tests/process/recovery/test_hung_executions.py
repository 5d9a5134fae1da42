"""Executions that do not end keep nobody from going on after a loss."""

import threading

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import waiting
import tfps
from tfps import testing
from tfps._compat import coordinator as compat
from tfps._utils import threads


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(2, 2) as processes:
    yield processes


class Story:
  """An execution that waits for a number which nobody has sent yet."""

  def __init__(self, processes, folder, **settings):
    self.events = []
    self.strategy = strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      recovery=tfps.Recovery(folder, on_event=self.events.append, **settings),
    )
    with strategy.scope():
      self._variables = [tf.Variable(0.0) for _ in range(2)]
    with tf.device('/job:ps/task:0'):
      self._queue = tf.queue.FIFOQueue(1, tf.int32)
    self._add = tf.function(lambda: losses.add_one(self._variables))
    self.coordinator = tfps.Coordinator(strategy, timeout_secs=60)
    self.coordinator.schedule(self._add)
    self.coordinator.join()
    self.waiting = self.coordinator.schedule(tf.function(self.wait))
    waiting.until(lambda: self.busy())

  def wait(self):
    with tf.device('/job:ps/task:0'):
      number = self._queue.dequeue()
    return number + 1

  def busy(self):
    return list(compat.busy_since(self.coordinator._cluster))

  def kinds(self):
    return [event.kind for event in self.events]

  def add(self):
    self.coordinator.fetch(self.coordinator.schedule(self._add))
    return losses.values(self._variables)

  def go_on(self):
    self._queue.enqueue(7)
    return self.coordinator.fetch(self.waiting)


@pytest.fixture
def story(processes, tmp_path, request):
  story = Story(processes, tmp_path, **getattr(request, 'param', {}))
  yield story
  story.coordinator.close()


def _lose_what_is_not_waited_for(processes, story):
  """Restarts the ps that the execution does not wait for, which repeats it."""
  processes.restart('ps', 1)
  # Nothing has failed of it, and nothing that is executed ever would.
  waiting.until(lambda: story.kinds() == ['back'], timeout_secs=60)
  waiting.until(lambda: story.busy())


def test_what_does_not_end_after_the_loss_of_a_ps_is_done_again(
  processes, story, set_timeouts
):
  set_timeouts(stuck_every_secs=0.5, lost_execution_secs=0.5)
  _lose_what_is_not_waited_for(processes, story)
  assert story.add() == {1.0}
  assert story.go_on() == 8


@pytest.mark.exhaustive
@pytest.mark.parametrize('story', [{'every_secs': 0.2}], indirect=True)
def test_it_is_done_again_while_a_snapshot_waits_for_its_end(
  processes, story, set_timeouts
):
  set_timeouts(stuck_every_secs=0.5, lost_execution_secs=0.5)
  waiting.until(lambda: story.strategy.guard.snapshotter.gate.is_closed)
  _lose_what_is_not_waited_for(processes, story)
  assert story.go_on() == 8  # the next snapshot waits for it, too
  (value,) = story.add()
  assert value in (1.0, 2.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  'story', [{'replicas': 1, 'replicate_every_secs': 0.2}], indirect=True
)
def test_a_copy_to_replicas_that_does_not_end_is_cancelled(
  processes, story, set_timeouts
):
  set_timeouts(stuck_every_secs=0.5, lost_execution_secs=0.5)
  copier = story.strategy.guard.copies.replicas._copier
  copy = tf.function(story.wait)
  begun = threading.Event()

  def hang():
    begun.set()
    copier._functions = functions
    return copy()

  functions, copier._functions = copier._functions, [hang]
  assert begun.wait(60)
  _lose_what_is_not_waited_for(processes, story)
  assert story.add() <= {1.0, 2.0}
  assert story.go_on() == 8


@pytest.mark.exhaustive
def test_a_worker_is_taken_back_while_another_executes(processes, story):
  (busy,) = story.busy()
  processes.restart('worker', 1 - busy)
  assert story.add() == {2.0}
  assert story.kinds() == ['lost', 'back']
  assert story.busy() == [busy]
  assert story.go_on() == 8


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=1, ps=2, processes=True)
def test_between_graphs_it_is_done_again_too(
  tfps_cluster, tmp_path, set_timeouts
):
  set_timeouts(stuck_every_secs=0.5)
  events = []
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(tmp_path, on_event=events.append),
  )
  with strategy.scope():
    variables = [tf.Variable(0.0, name=name) for name in 'ab']
  with tf.device('/job:ps/task:0'):
    queue = tf.queue.FIFOQueue(1, tf.int32)

  @tf.function
  def wait():
    losses.add_one(variables)
    with tf.device('/job:ps/task:0'):
      number = queue.dequeue()
    return number + 1

  waits = threads.begin('waits', lambda: strategy.surviving(wait))
  waiting.until(lambda: losses.values(variables[:1]) == {1.0})
  tfps_cluster.restart('ps', 1)
  waiting.until(lambda: [e.kind for e in events] == ['back'], timeout_secs=60)
  strategy.surviving(lambda: queue.enqueue(7))
  assert int(waits.result(60)) == 8
  strategy.close()
