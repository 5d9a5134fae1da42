"""All is visited although tasks are lost in the middle of an epoch."""

import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import sleeps
from tests.support import waiting
import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2, processes=True)

_TOTAL, _SPLIT, _BATCH, _PER_EXECUTION = 1_000, 100, 5, 2
_STEP_SECS = 0.02


class Visits:
  """Of the numbers, counted on the ps by the steps themselves."""

  def __init__(self, strategy, visitation):
    self.strategy = strategy
    with strategy.scope():
      self._counts = tf.Variable(tf.zeros([_TOTAL], tf.int64), trainable=False)
      self.queue = tfps.input.SplitQueue(
        tfps.input.Ranges(_TOTAL, _SPLIT), visitation=visitation
      )
      self._number = tf.Variable(0.0)
      self._optimizer = keras.optimizers.SGD(1.0)
      self._optimizer.build([self._number])

  def step(self, numbers):
    ones = sleeps.slow(_STEP_SECS) * tf.ones_like(numbers)
    self._counts.scatter_add(tf.IndexedSlices(ones, numbers))
    self._optimizer.apply([tf.constant(1.0)], [self._number])

  @property
  def num_updates(self):
    return -int(self._number.numpy())

  def dataset(self, context):
    return self.queue.dataset(context).batch(_BATCH)

  def train(self, *hooks, **kwargs):
    """The counts, and the global step, at the end of the epoch."""
    with tfps.Coordinator(self.strategy, timeout_secs=120) as coordinator:
      coordinator.train(
        self.step,
        self.dataset,
        steps_per_execution=_PER_EXECUTION,
        hooks=hooks,
        **kwargs,
      )
      (count,) = self.queue.report().epochs.values()
      assert (count.to_do, count.doing) == (0, 0)
      return self._counts.numpy(), int(coordinator.global_step.numpy())


class Fitted(Visits):
  """The same, by Keras' fit."""

  def train(self, hook):
    visits = self

    class Model(keras.Model):
      def train_step(self, numbers):
        visits.step(numbers)
        return {}

    with self.strategy.scope():
      model = Model()
      model.built = True
      model.compile(steps_per_execution=_PER_EXECUTION)
    model.fit(self.dataset, callbacks=[_Hooked(hook)], verbose=0)
    (count,) = self.queue.report().epochs.values()
    assert (count.to_do, count.doing) == (0, 0)
    return self._counts.numpy()


class _Hooked(keras.callbacks.Callback):
  def __init__(self, hook):
    super().__init__()
    self._hook = hook

  def on_train_batch_end(self, batch, logs=None):
    self._hook(types.SimpleNamespace(step=batch, moment='execution'))

  def on_train_end(self, logs=None):
    self._hook(types.SimpleNamespace(step=0, moment='end'))


def _strategy(processes, directory=None, *, updates=None, **kwargs):
  recovery = None
  if directory is not None:
    recovery = tfps.Recovery(directory, **kwargs)
  return tfps.ParameterServerStrategy(
    processes.cluster, updates=updates, recovery=recovery
  )


def _kill_worker(processes):
  return losses.At(60, lambda: processes.kill('worker', 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize('visitation', ['at_least_once', 'exactly_once'])
def test_what_a_killed_worker_was_at_is_taken_by_others(processes, visitation):
  visits = Visits(_strategy(processes), visitation)
  counts, step = visits.train(_kill_worker(processes))
  assert counts.min() == 1
  # The execution at which it was, of which nothing counts; or the split.
  again = {'at_least_once': _SPLIT, 'exactly_once': _PER_EXECUTION * _BATCH}
  assert counts.sum() - _TOTAL <= again[visitation]
  if visitation == 'exactly_once':
    assert step == _TOTAL // _BATCH


@pytest.mark.exhaustive
def test_fit_goes_on_with_what_a_killed_worker_was_at(processes):
  visits = Fitted(_strategy(processes), 'exactly_once')
  counts = visits.train(_kill_worker(processes))
  assert counts.min() == 1
  assert counts.sum() - _TOTAL <= _PER_EXECUTION * _BATCH


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('updates', 'make'),
  [
    (tfps.updates.Sync(timeout_secs=2), Visits),
    (tfps.updates.BoundedStaleness(1, timeout_secs=2), Fitted),
    (tfps.updates.Sync(timeout_secs=2), Fitted),
    (tfps.updates.BoundedStaleness(1, timeout_secs=2), Visits),
  ],
)
def test_others_wait_no_longer_and_take_what_a_killed_worker_was_at(
  processes, updates, make
):
  strategy = _strategy(processes, updates=updates)
  visits = make(strategy, 'exactly_once')
  found = visits.train(losses.At(30, lambda: processes.kill('worker', 1)))
  counts = found[0] if make is Visits else found
  assert counts.min() == 1
  assert counts.sum() - _TOTAL <= _PER_EXECUTION * _BATCH
  report = strategy.updates_report()
  assert report.updates == visits.num_updates
  assert report.late == 0


@pytest.mark.exhaustive
def test_progress_goes_back_with_a_model_of_whole_updates(processes, tmp_path):
  strategy = _strategy(
    processes, tmp_path, updates=tfps.updates.Sync(), every_secs=0.5
  )
  visits = Visits(strategy, 'exactly_once')
  lose = losses.At(50, losses.lose(processes, ('ps', 0)))
  counts, step = visits.train(lose)
  assert counts.min() == 1
  # Cuts are made between steps, and the ledger goes by executions.
  assert counts.sum() - _TOTAL <= 2 * _PER_EXECUTION * _BATCH
  assert step == visits.num_updates


@pytest.mark.exhaustive
def test_with_marks_one_batch_at_most_is_visited_again(processes, tmp_path):
  visits = Visits(_strategy(processes, tmp_path), 'exactly_once')
  counts, step = visits.train(_kill_worker(processes))
  assert counts.min() == 1
  assert counts.sum() - _TOTAL <= _BATCH
  assert step == _TOTAL // _BATCH


@pytest.mark.exhaustive
def test_what_a_worker_that_leaves_was_at_is_gone_on_with(processes, tmp_path):
  visits = Visits(_strategy(processes, tmp_path), 'exactly_once')
  leave = losses.At(60, lambda: processes.terminate('worker', 1))
  counts, step = visits.train(leave)
  np.testing.assert_array_equal(counts, 1)
  assert step == _TOTAL // _BATCH


@pytest.mark.exhaustive
@pytest.mark.parametrize('ps', [0, 1])
def test_progress_goes_back_with_the_model(processes, tmp_path, ps):
  strategy = _strategy(processes, tmp_path, every_secs=0.5)
  visits = Visits(strategy, 'exactly_once')
  lose = losses.At(80, losses.lose(processes, ('ps', ps)))
  counts, step = visits.train(lose)
  np.testing.assert_array_equal(counts, 1)
  assert step == _TOTAL // _BATCH


@pytest.mark.exhaustive
def test_progress_goes_back_with_a_model_that_is_fitted(processes, tmp_path):
  strategy = _strategy(processes, tmp_path, every_secs=0.5)
  visits = Fitted(strategy, 'exactly_once')
  counts = visits.train(losses.At(80, losses.lose(processes, ('ps', 0))))
  np.testing.assert_array_equal(counts, 1)


@pytest.mark.exhaustive
def test_replicas_keep_progress(processes, tmp_path):
  strategy = _strategy(processes, tmp_path, every_secs=3600, replicas=1)
  visits = Visits(strategy, 'exactly_once')
  lose = losses.At(80, losses.lose(processes, ('ps', 0)))
  counts, step = visits.train(lose)
  assert counts.min() == 1
  assert counts.sum() - _TOTAL <= 2 * _BATCH  # of each worker, a batch
  assert step == _TOTAL // _BATCH


class _StopError(Exception):
  pass


@pytest.mark.exhaustive
def test_a_chief_that_is_started_again_goes_on_in_the_epoch(
  processes, tmp_path
):
  def stop(progress):
    if progress.step >= 60:
      raise _StopError

  first = Visits(_strategy(processes, tmp_path), 'exactly_once')
  with pytest.raises(_StopError):
    first.train(stop)
  second = Visits(_strategy(processes, tmp_path), 'exactly_once')
  assert sum(second.queue.report().epochs[0].__dict__.values()) == 10
  counts, _ = second.train()
  assert counts.min() == 1
  # What was under way when the first was stopped.
  assert counts.sum() - _TOTAL <= 2 * 2 * _PER_EXECUTION * _BATCH


@pytest.fixture
def start(start_workers):
  def start(visitation, directory, how, updates='Async'):
    args = _TOTAL, visitation, _STEP_SECS, directory, how, updates
    return start_workers(2, 'visit.py', *args)

  return start


def _numbers(cluster, what):
  (found,) = re.findall(rf'^{what} (.*)$', cluster.log('worker', 0), re.M)
  return [int(word) for word in found.split()]


LOSSES = {
  'a worker': ('-', [('worker', 1)]),
  'the ps with the ledger, and a worker': ('cuts', [('ps', 0), ('worker', 1)]),
}


def _wait_until_all_train(cluster):
  for worker in range(2):
    waiting.until(
      lambda worker=worker: cluster.log('worker', worker).count('\nat ') > 4
    )


@pytest.mark.parametrize(
  ('loss', 'how'),
  [
    pytest.param('a worker', 'fit', marks=pytest.mark.exhaustive),
    pytest.param(
      'the ps with the ledger, and a worker',
      'train',
      marks=pytest.mark.exhaustive,
    ),
    pytest.param('a worker', 'train', marks=pytest.mark.exhaustive),
    pytest.param(
      'the ps with the ledger, and a worker',
      'fit',
      marks=pytest.mark.exhaustive,
    ),
  ],
)
def test_between_graphs_all_is_visited(start, tmp_path, loss, how):
  directory, lost = LOSSES[loss]
  directory = '-' if directory == '-' else str(tmp_path / directory)
  cluster = start('exactly_once', directory, how)
  _wait_until_all_train(cluster)
  for job, index in lost:
    cluster.kill(job, index)
    if job == 'ps':
      cluster.start(job, index)
  assert cluster.wait('worker', 0, timeout_secs=120) == 0
  least, _, total = _numbers(cluster, 'visits')
  assert least == 1
  # Of the dead worker's, what was not counted; and by what a cut has by half.
  assert total - _TOTAL <= 2 * _PER_EXECUTION * _BATCH
  if how == 'train':
    assert _numbers(cluster, 'batches')[0] >= _TOTAL // _BATCH
  assert '0 to do, 0 doing' in cluster.log('worker', 0)


@pytest.mark.parametrize(
  ('updates', 'how'),
  [
    pytest.param('Sync', 'train', marks=pytest.mark.exhaustive),
    pytest.param('BoundedStaleness', 'fit', marks=pytest.mark.exhaustive),
    pytest.param('Sync', 'fit', marks=pytest.mark.exhaustive),
    pytest.param('BoundedStaleness', 'train', marks=pytest.mark.exhaustive),
  ],
)
def test_between_graphs_others_wait_no_longer_for_who_is_lost(
  start, updates, how
):
  cluster = start('exactly_once', '-', how, updates)
  _wait_until_all_train(cluster)
  cluster.kill('worker', 1)
  assert cluster.wait('worker', 0, timeout_secs=120) == 0
  least, _, total = _numbers(cluster, 'visits')
  assert least == 1
  assert total - _TOTAL <= _PER_EXECUTION * _BATCH
  (num_updates,) = _numbers(cluster, 'updates')
  if updates == 'Sync':
    assert num_updates < _TOTAL // _BATCH
  else:
    assert num_updates >= _TOTAL // _BATCH
  assert '0 to do, 0 doing' in cluster.log('worker', 0)
