"""Tables whose vocabulary has changed take what a checkpoint has for them."""

import contextlib

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.strategies import in_graph
from tfps.variables import partitioners
from tfps.variables import row_writes

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)

_OLD, _NEW = 50, 80
# One that is in both, at another row, and some of which only one has.
_OLD_TOKENS = [f't{i}' for i in range(_OLD)]
_NEW_TOKENS = [f't{i}' for i in reversed(range(20, 90))]
_HERE = tf.train.CheckpointOptions(experimental_io_device='/device:CPU:0')

_OPTIMIZERS = {
  'Adam': lambda: keras.optimizers.Adam(0.1),
  'Adagrad': lambda: keras.optimizers.Adagrad(0.1),
  'momentum': lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}


class Alone:
  """No strategy."""

  def __init__(self, cluster, partitioner):
    del cluster, partitioner

  def scope(self):
    return contextlib.nullcontext()


_STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': in_graph.InGraphStrategy,
  'alone': Alone,
}


@pytest.fixture(autouse=True)
def _several_slices(monkeypatch):
  """Seven rows each."""
  monkeypatch.setattr(row_writes, 'SLICE_BYTES', 7 * 4 * 4)


def _make(strategy, num_rows, optimizer='Adam'):
  """A root and its table."""
  with strategy.scope():
    table = layers.Embedding(num_rows, 4, name='table')
    model = keras.Sequential(
      [
        layers.Input((3,), dtype='int32'),
        table,
        layers.Flatten(),
        layers.Dense(16),
        layers.Dense(1),
      ]
    )
    model.compile(_OPTIMIZERS[optimizer](), 'mse')
    model.optimizer.build(model.trainable_variables)
  root = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
  return root, table.embeddings


def _save(directory, strategy=None, optimizer='Adam'):
  """A checkpoint of a trained model, and its values."""
  strategy = strategy or Alone(None, None)
  root, _ = _make(strategy, _OLD, optimizer)
  values = np.random.default_rng(0)
  for variable in _variables(root):
    if variable.shape.rank:
      variable.assign(values.random(variable.shape, 'f'))
  root.optimizer.iterations.assign(7)
  return root.write(str(directory / 'old'), _HERE), _values(root)


def _variables(root):
  return [*root.model.trainable_variables, *root.optimizer.variables]


def _values(root):
  return [variable.numpy() for variable in _variables(root)]


def _is_table(value):
  return value.shape[:1] in [(_OLD,), (_NEW,)]


def _assert_moved(before, old, root, rows):
  """That rows have moved, given as pairs of old and new ones."""
  source, target = map(list, zip(*rows, strict=True))
  for first, saved, found in zip(before, old, _values(root), strict=True):
    expected = saved
    if _is_table(saved):
      expected = first.copy()
      expected[target] = saved[source]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize('kind', list(_STRATEGIES))
def test_rows_and_slots_are_kept_by_number(tfps_cluster, tmp_path, kind):
  """They are in two shards, and are restored to three."""
  cluster = tfps_cluster.cluster
  shards = partitioners.FixedShards(2)
  path, old = _save(tmp_path, tfps.ParameterServerStrategy(cluster, shards))
  strategy = _STRATEGIES[kind](cluster, partitioners.FixedShards(3))
  root, _ = _make(strategy, _NEW)
  before = _values(root)
  result = tfps.checkpoints.warm_start(path, root)
  _assert_moved(before, old, root, [(i, i) for i in range(_OLD)])
  assert int(root.optimizer.iterations) == 7
  assert list(result.rows.values()) == [(_OLD, _NEW, _OLD)] * 3
  assert result.left_out == {}
  assert result.missing == result.unused == ()


@pytest.mark.parametrize(
  ('optimizer', 'shards'),
  [
    ('Adam', 3),
    ('Adagrad', 1),
    pytest.param('momentum', 3, marks=pytest.mark.exhaustive),
    pytest.param('Adam', 1, marks=pytest.mark.exhaustive),
  ],
)
def test_rows_and_slots_are_kept_by_token(
  tfps_cluster, tmp_path, optimizer, shards
):
  """The checkpoint is of whole variables, and the vocabularies are files."""
  path, old = _save(tmp_path, optimizer=optimizer)
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(shards)
  )
  root, table = _make(strategy, _NEW, optimizer)
  before = _values(root)
  for name, tokens in (('old', _OLD_TOKENS), ('new', _NEW_TOKENS)):
    (tmp_path / name).write_text('\n'.join(tokens) + '\n')
  result = tfps.checkpoints.warm_start(
    path,
    root,
    vocabularies=[
      tfps.checkpoints.Vocabulary(
        table, old=tmp_path / 'old', new=str(tmp_path / 'new')
      )
    ],
  )
  moved = [
    (i, _NEW_TOKENS.index(token))
    for i, token in enumerate(_OLD_TOKENS)
    if token in _NEW_TOKENS
  ]
  _assert_moved(before, old, root, moved)
  assert result.rows[table.path] == (len(moved), _NEW, _OLD)


@pytest.mark.exhaustive
def test_training_goes_on_from_there(tfps_cluster, tmp_path):
  """As in a single process whose table has the same rows."""
  path, _ = _save(tmp_path)
  x = np.random.default_rng(1).permutation(_NEW)[:60].reshape([20, 3])
  y = x.sum(1, keepdims=True) / _NEW

  def trained(strategy):
    keras.utils.set_random_seed(1)
    root, _ = _make(strategy, _NEW)
    tfps.checkpoints.warm_start(path, root)
    root.model.fit(x, y, batch_size=5, shuffle=False, verbose=0)
    return root.model.get_weights()

  mine = trained(tfps.ParameterServerStrategy(tfps_cluster.cluster))
  for value, expected in zip(mine, trained(Alone(None, None)), strict=True):
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('shards', turns.rarely([1, 2], but=[1]))
def test_a_restore_to_other_shapes_is_refused(tfps_cluster, tmp_path, shards):
  """TensorFlow would give a whole variable such a value."""
  partitioner = partitioners.FixedShards(shards)
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, partitioner)
  path, _ = _save(tmp_path, strategy)
  root, table = _make(strategy, _NEW)
  before = _values(root)
  with pytest.raises(
    tfps.CheckpointError,
    match=rf'{path} .*{table.path} has shape \[50, 4\] there, and \[80, 4\] in '
    r'.*tfps\.checkpoints\.warm_start',
  ):
    root.restore(path, _HERE)
  for value, expected in zip(_values(root), before, strict=True):
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize('shards', turns.rarely([1, 2], but=[2]))
def test_training_from_a_directory_refuses_it_too(
  tfps_cluster, tmp_path, shards
):
  strategy = tfps.BetweenGraphStrategy(
    tfps_cluster.cluster, partitioners.FixedShards(shards)
  )

  def train(num_rows):
    with strategy.scope():
      table = tf.Variable(tf.zeros([num_rows, 2]), name=f'table{num_rows}')
    strategy.global_step.assign(0)
    strategy.train(
      lambda batch: {'loss': tf.reduce_sum(table[:1])},
      lambda context: tf.data.Dataset.range(9).repeat(),
      steps=1,
      checkpoint=tf.train.Checkpoint(table=table),
      checkpoint_dir=tmp_path,
    )

  train(5)
  with pytest.raises(
    tfps.CheckpointError, match=r'ckpt-1 .*table8 has shape \[5, 2\].*\[8, 2\]'
  ):
    train(8)


def test_what_was_not_found_is_told(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    old = tf.train.Checkpoint(
      a=tf.Variable([[1.0, 2.0]], name='a'),
      b=tf.Variable([1.0], name='b'),
      c=tf.Variable([1.0, 2.0], name='c'),
      same=tf.Variable(3, name='same'),
    )
    new = tf.train.Checkpoint(
      a=tf.Variable([[0.0, 0.0, 0.0]], name='a'),
      b=tf.Variable([0], name='b'),
      d=tf.Variable(0.0, name='d'),
      same=tf.Variable(0, name='same'),
    )
  old.save(str(tmp_path / 'ckpt'), _HERE)
  result = tfps.checkpoints.warm_start(tmp_path, new)
  assert result == tfps.checkpoints.WarmStart(
    path=str(tmp_path / 'ckpt-1'),
    restored=('same',),
    left_out={
      'a': 'shape [1, 2] in the checkpoint, [1, 3] here',
      'b': 'float32 in the checkpoint, int32 here',
    },
    missing=('d',),
    unused=('c/.ATTRIBUTES/VARIABLE_VALUE',),
  )
  assert 'd' in str(result)
  assert int(new.same) == 3


@pytest.mark.exhaustive
def test_a_restarted_chief_does_not_undo_training(tfps_cluster, tmp_path):
  path, old = _save(tmp_path)

  def run():
    keras.backend.clear_session()  # names are those of a fresh program
    strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
    root, table = _make(strategy, _NEW)
    return tfps.checkpoints.warm_start(path, root), table

  result, table = run()
  assert not result.is_elsewhere
  np.testing.assert_array_equal(table.numpy()[:_OLD], old[0])
  table.assign(tf.ones([_NEW, 4]))
  result, again = run()
  assert result.is_elsewhere
  np.testing.assert_array_equal(again.numpy(), np.ones([_NEW, 4]))


def test_it_is_in_a_snapshot_at_once(tfps_cluster, tmp_path):
  """There was one before, of the variables' initial values."""
  path, old = _save(tmp_path)

  def run():
    keras.backend.clear_session()
    strategy = tfps.ParameterServerStrategy(
      tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path / 'recovery')
    )
    root, table = _make(strategy, _NEW)
    strategy.guard.snapshotter.save()
    return tfps.checkpoints.warm_start(path, root), table

  run()
  result, table = run()
  assert result.is_elsewhere
  np.testing.assert_array_equal(table.numpy()[:_OLD], old[0])
