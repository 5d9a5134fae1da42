"""Large values reach the ps in slices, and variables get them whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps._compat import replicated_writes
from tfps.variables import large_values
from tfps.variables import partitioners
from tfps.variables import row_writes
from tfps.variables import shared_variables

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_ROWS, _SLICE = 50, 7
_MATRIX = np.random.default_rng(0).random((_ROWS, 4), 'f')
_PS = '/job:ps/replica:0/task:0/device:CPU:0'


@pytest.fixture(autouse=True)
def sent(monkeypatch):
  """The numbers of rows that were sent at a time."""
  found = []
  slices = row_writes.row_slices

  def noting(*args):
    for rows in slices(*args):
      found.append(rows.stop - rows.start)
      yield rows

  monkeypatch.setattr(row_writes, 'SLICE_BYTES', _SLICE * 4 * 4)
  monkeypatch.setattr(row_writes, 'row_slices', noting)
  return found


def _layer(initializer):
  layer = keras.layers.Embedding(_ROWS, 4, embeddings_initializer=initializer)
  layer.build(None)
  return layer


_INITIAL = {
  'constant': lambda: _layer(keras.initializers.Constant(_MATRIX)).embeddings,
  "TensorFlow's": lambda: _layer(tf.constant_initializer(_MATRIX)).embeddings,
  'function': lambda: _layer(lambda shape, dtype: _MATRIX).embeddings,
  'array': lambda: tf.Variable(_MATRIX, name='x'),
  'float64': lambda: tf.Variable(_MATRIX.astype('f8'), dtype=tf.float32),
  'function without shape': lambda: tf.Variable(lambda: _MATRIX),
  'tensor': lambda: tf.Variable(tf.constant(_MATRIX)),
  'weights': lambda: _with_weights().embeddings,
}


def _with_weights():
  layer = keras.layers.Embedding(_ROWS, 4, weights=[_MATRIX])
  layer.build(None)
  return layer


def in_way(make, shards):
  """Runs a test in this way, and with --exhaustive in all."""
  return pytest.mark.parametrize(
    ('make', 'shards'),
    turns.rarely(
      [
        (make, shards)
        for make in (tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy)
        for shards in (1, 3)
      ],
      but=[(make, shards)],
    ),
  )


@in_way(tfps.ParameterServerStrategy, 3)
def test_initial_values_are_sent_in_slices(tfps_cluster, make, shards, sent):
  keras.utils.clear_session()
  strategy = make(tfps_cluster.cluster, partitioners.FixedShards(shards))
  for kind, variable in _INITIAL.items():
    sent.clear()
    with strategy.scope():
      found = variable()
    np.testing.assert_array_equal(found.numpy(), _MATRIX, kind)
    assert sum(sent) == _ROWS, kind
    assert max(sent) <= _SLICE


_ASSIGNMENTS = {
  'set_weights': lambda layer: layer.set_weights([_MATRIX]),
  "Keras' assign": lambda layer: layer.embeddings.assign(_MATRIX),
  'assign': lambda layer: layer.embeddings.value.assign(_MATRIX),
  'float64': lambda layer: layer.set_weights([_MATRIX.astype('f8')]),
  'tensor': lambda layer: layer.embeddings.assign(tf.constant(_MATRIX)),
}


@in_way(tfps.BetweenGraphStrategy, 1)
def test_assigned_values_are_sent_in_slices(tfps_cluster, make, shards, sent):
  strategy = make(tfps_cluster.cluster, partitioners.FixedShards(shards))
  with strategy.scope():
    layer = _layer('zeros')
  assert not sent
  for kind, assign in _ASSIGNMENTS.items():
    sent.clear()
    layer.embeddings.value.assign(tf.zeros([_ROWS, 4]))
    sent.clear()
    assign(layer)
    np.testing.assert_array_equal(layer.embeddings.numpy(), _MATRIX, kind)
    assert sum(sent) == _ROWS, kind
    assert max(sent) <= _SLICE


def test_a_value_that_was_read_stays_as_it_is(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    variable = tf.Variable(_MATRIX)
  before = variable.read_value()
  variable.assign(_MATRIX + 1)
  variable.scatter_update(tf.IndexedSlices(tf.zeros([1, 4]), [3]))
  np.testing.assert_array_equal(before.numpy(), _MATRIX)
  expected = _MATRIX + 1
  expected[3] = 0
  np.testing.assert_array_equal(variable.numpy(), expected)


def test_replicas_get_it_too(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path, replicas=1)
  )
  with strategy.scope():
    variable = tf.Variable(tf.zeros([_ROWS, 4]))
  strategy.guard.copies.keep()
  variable.assign(_MATRIX)
  replica = replicated_writes.replica_of(variable)
  np.testing.assert_array_equal(replica.numpy(), _MATRIX)


def test_a_value_of_another_shape_is_refused(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(2)
  )
  with strategy.scope():
    layer = _layer('zeros')
    with pytest.raises(ValueError, match='must match'):
      layer.embeddings.assign(_MATRIX[1:])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
      _layer(keras.initializers.Constant(_MATRIX[1:]))


def test_others_do_not_see_what_a_chief_has_not_completed(
  tfps_cluster, monkeypatch
):
  """It ends in the middle; it, or the next one, makes the variable anew."""
  tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  slices = row_writes.row_slices

  def failing(*args):
    for number, rows in enumerate(slices(*args)):
      if number == 3:
        raise KeyboardInterrupt
      yield rows

  def make(*, is_chief, value):
    program = shared_variables.SharedVariables(
      is_chief=is_chief, timeout_secs=0.2, chief='worker:0'
    )
    with tf.device(_PS):
      return large_values.creator(program.make)(initial_value=value, name='v')

  with monkeypatch.context() as patch:
    patch.setattr(row_writes, 'row_slices', failing)
    with pytest.raises(KeyboardInterrupt):
      make(is_chief=True, value=_MATRIX)
  with pytest.raises(tfps.DeadlineError, match='worker:0 has not created'):
    make(is_chief=False, value=_MATRIX)
  made = make(is_chief=True, value=_MATRIX + 1)
  assert not made.attached
  found = make(is_chief=False, value=_MATRIX)
  assert found.attached
  np.testing.assert_array_equal(found.numpy(), _MATRIX + 1)
