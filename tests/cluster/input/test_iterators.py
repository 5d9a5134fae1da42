"""Who lets go of an iterator does not wait for its pipeline."""

import sys
import threading
import time

import pytest
import tensorflow as tf

import tfps
from tfps import testing
from tfps._utils import threads
from tfps.input import iterators

_LONG_SECS = 30.0
_WORKER = '/job:worker/replica:0/task:0/device:CPU:0'


class Slow:
  """Datasets whose second element comes only when it is told to."""

  def __init__(self):
    self.is_waiting, self.may_go_on = threading.Event(), threading.Event()
    self.has_gone_on = threading.Event()

  def dataset(self):
    dataset = tf.data.Dataset.range(3).map(
      lambda i: {
        'number': tf.ensure_shape(
          tf.numpy_function(self._wait, [i], tf.int64), []
        ),
        'sparse': tf.sparse.from_dense([i]),
        'ragged': tf.RaggedTensor.from_row_lengths([i], [1]),
      }
    )
    return dataset.prefetch(1)

  def _wait(self, number):
    if number == 1:
      self.is_waiting.set()
      self.may_go_on.wait(_LONG_SECS)
      self.has_gone_on.set()
    return number


def use(slow, iterator):
  assert int(next(iterator)['number']) == 0
  assert slow.is_waiting.wait(_LONG_SECS)


def num_ending():
  return sum(thread.name == 'tfps-end' for thread in threading.enumerate())


def wait_until(condition):
  deadline = time.monotonic() + _LONG_SECS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.05)


@pytest.mark.parametrize('letting_go', ['at once', 'late'])
def test_the_end_of_an_iterator_is_waited_for_by_nobody(letting_go):
  slow = Slow()
  iterator = iterators.over(slow.dataset())
  use(slow, iterator)
  (handle,) = tf.nest.flatten(iterator, expand_composites=True)
  num_references = sys.getrefcount(handle)
  if letting_go == 'at once':
    del handle
  del iterator
  if letting_go == 'late':
    # The thread that deletes it has it alone, once this one has let go.
    wait_until(lambda: num_ending())
    wait_until(lambda: sys.getrefcount(handle) < num_references)
    del handle
  assert not slow.has_gone_on.is_set()
  slow.may_go_on.set()
  wait_until(lambda: not num_ending())


@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_those_on_servers_are_emptied_before_they_are_deleted(tfps_cluster):
  tfps.ParameterServerStrategy(tfps_cluster.cluster)
  slow = Slow()
  slow.may_go_on.set()
  made = tf.function(lambda: slow.dataset().repeat()).get_concrete_function()
  spec = made.structured_outputs.element_spec
  emptying = iterators.emptying(spec)
  with tf.device(_WORKER):
    iterator = iterators.over(made(), emptying)
    handle = tf.nest.flatten(iterator, expand_composites=True)
    same = tf.nest.pack_sequence_as(
      tf.data.IteratorSpec(spec), handle, expand_composites=True
    )
    numbers = [int(next(each)['number']) for each in (iterator, same)]
    assert numbers == [0, 1]
    del iterator
    wait_until(lambda: not same.get_next_as_optional().has_value())


def test_what_has_gone_with_its_server_is_let_go_of():
  def lost(handle):
    del handle
    raise tf.errors.UnavailableError(None, None, 'It has gone.')

  iterator = iterators.over(tf.data.Dataset.range(2), lost)
  del iterator
  wait_until(lambda: not num_ending())


@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_those_of_earlier_connections_are_left_alone(tfps_cluster):
  emptied = []

  def make():
    with tf.device(_WORKER):
      return iterators.over(tf.data.Dataset.range(2), emptied.append)

  tfps.ParameterServerStrategy(tfps_cluster.cluster)
  iterator = make()
  with testing.InProcessCluster(num_workers=1, num_ps=1) as another:
    tfps.ParameterServerStrategy(another.cluster)
    del iterator
    wait_until(lambda: not num_ending())
    assert not emptied
    iterator = make()
    del iterator
    wait_until(lambda: emptied)


def test_the_exit_waits_for_deletions_and_begins_no_more():
  begun, go_on, ended = [], threading.Event(), []

  def delete(box, stopping):
    begun.append(box)
    assert stopping.wait(30)
    go_on.wait(30)
    ended.append(box)

  deletions = iterators.Deletions(delete)
  deletions.put([1])
  wait_until(lambda: begun)
  exiting = threads.begin('exit', deletions.stop)
  assert not threads.is_done(exiting, 0.05)
  go_on.set()
  assert threads.is_done(exiting, 30)
  assert ended == [[1]]
  deletions.put([2])  # the thread that would begin it has ended
  assert begun == [[1]]
