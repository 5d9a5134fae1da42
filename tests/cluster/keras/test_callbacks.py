"""Keras' own callbacks see what they would see in a single process."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_X = np.random.default_rng(0).random((96, 3), 'f')
_Y = _X.sum(1, keepdims=True)
_ARGUMENTS = {
  'x': _X,
  'y': _Y,
  'batch_size': 8,
  'shuffle': False,
  'verbose': 0,
}


@pytest.fixture
def strategy(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


def _build() -> keras.Model:
  keras.utils.set_random_seed(3)
  model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
  model.compile('adam', 'mse', metrics=['mae'], steps_per_execution=3)
  return model


@pytest.fixture
def model(strategy):
  with strategy.scope():
    return _build()


class _Interrupts(keras.callbacks.Callback):
  """Fails in the middle of the third epoch."""

  def __init__(self):
    super().__init__()
    self._epoch = 0

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if self._epoch == 2 and batch >= 5:
      raise KeyboardInterrupt


def test_a_run_is_taken_up_where_it_was_interrupted(strategy, model, tmp_path):
  backup = tmp_path / 'backup'
  with pytest.raises(KeyboardInterrupt):
    model.fit(
      **_ARGUMENTS,
      epochs=4,
      callbacks=[keras.callbacks.BackupAndRestore(backup), _Interrupts()],
    )
  with strategy.scope():
    again = _build()
  history = again.fit(
    **_ARGUMENTS,
    epochs=4,
    callbacks=[keras.callbacks.BackupAndRestore(backup)],
  )
  assert history.epoch == [2, 3]
  assert int(again.optimizer.iterations) == 48
  assert not list(tmp_path.glob('backup/*.h5'))


def _saved_by_batch(model, folder):
  """The backup's metadata and the names of the checkpoints."""
  model.fit(
    **_ARGUMENTS,
    epochs=2,
    callbacks=[
      keras.callbacks.BackupAndRestore(
        folder / 'backup', save_freq=6, delete_checkpoint=False
      ),
      keras.callbacks.ModelCheckpoint(
        folder / 'at_{batch}.weights.h5',
        save_weights_only=True,
        save_freq=6,
      ),
    ],
  )
  metadata = (folder / 'backup' / 'training_metadata.json').read_text()
  names = sorted(path.name for path in folder.glob('*.h5'))
  return json.loads(metadata), names


@pytest.mark.exhaustive
def test_backups_and_checkpoints_are_made_by_batch(model, tmp_path):
  saved, names = _saved_by_batch(model, tmp_path / 'ours')
  assert saved['epoch'] == 1
  assert len(names) >= 2
  assert (saved, names) == _saved_by_batch(_build(), tmp_path / 'expected')


@pytest.mark.exhaustive
def test_the_best_is_kept_and_brought_back(model, tmp_path):
  class Worsens(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      if epoch == 2:
        for weight in self.model.trainable_variables:
          weight.assign(weight + 100.0)

  best = tmp_path / 'best.keras'
  history = model.fit(
    **_ARGUMENTS,
    epochs=6,
    validation_data=(_X, _Y),
    callbacks=[
      Worsens(),
      keras.callbacks.ModelCheckpoint(
        best, monitor='val_loss', save_best_only=True
      ),
      keras.callbacks.EarlyStopping(
        'val_loss', patience=2, restore_best_weights=True
      ),
    ],
  )
  losses = history.history['val_loss']
  assert history.epoch == [0, 1, 2, 3]
  assert min(losses) == losses[1]
  kept = keras.models.load_model(best)
  for one, other in zip(model.weights, kept.weights, strict=True):
    np.testing.assert_array_equal(one.numpy(), other.numpy())
  found = model.evaluate(_X, _Y, verbose=0, return_dict=True)
  assert found['loss'] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.exhaustive
def test_the_learning_rate_is_set_by_epoch_and_by_plateau(model, tmp_path):
  rates = []
  model.fit(
    **_ARGUMENTS,
    epochs=4,
    callbacks=[
      keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: 0.5 if epoch == 0 else rate
      ),
      keras.callbacks.ReduceLROnPlateau(
        'loss', factor=0.1, patience=1, min_delta=1e6
      ),
      keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(
          float(model.optimizer.learning_rate)
        )
      ),
      keras.callbacks.CSVLogger(tmp_path / 'log.csv'),
    ],
  )
  np.testing.assert_allclose(rates, [0.5, 0.05, 0.005, 0.0005], rtol=1e-5)
  lines = (tmp_path / 'log.csv').read_text().splitlines()
  assert lines[0].startswith('epoch,learning_rate,loss,mae')
  assert len(lines) == 5


@pytest.mark.exhaustive
def test_tensorboard_gets_epochs_batches_and_histograms(model, tmp_path):
  model.fit(
    **_ARGUMENTS,
    epochs=2,
    validation_data=(_X, _Y),
    callbacks=[
      keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    ],
  )
  tags = set()
  for path in map(str, tmp_path.glob('*/events*')):
    for event in tf.compat.v1.train.summary_iterator(path):
      tags |= {value.tag for value in event.summary.value}
  assert {'epoch_loss', 'epoch_mae', 'batch_loss'} <= tags
  assert any('kernel' in tag for tag in tags)


@pytest.mark.exhaustive
def test_the_progress_bar_counts_all_steps(model, capsys):
  model.fit(**{**_ARGUMENTS, 'verbose': 1}, validation_data=(_X, _Y))
  shown = capsys.readouterr().out
  assert '12/12' in shown
  assert 'val_mae' in shown


def test_a_loss_that_is_no_number_ends_training(strategy):
  with strategy.scope():
    model = _build()
    model.compile(keras.optimizers.SGD(1e30), 'mse')
  history = model.fit(
    **_ARGUMENTS, epochs=5, callbacks=[keras.callbacks.TerminateOnNaN()]
  )
  # Steps that are under way end first.
  assert history.epoch in ([0], [0, 1])
  model.set_weights([np.zeros_like(w) for w in model.get_weights()])
  with strategy.scope():
    model.compile('adam', 'mse')
  assert np.isfinite(model.fit(**_ARGUMENTS).history['loss'][0])


def test_numbers_are_checked_within_a_step(strategy):
  class Checked(keras.layers.Layer):
    def call(self, x):
      return tf.debugging.check_numerics(x, 'The layer got')

  with strategy.scope():
    model = keras.Sequential(
      [keras.layers.Input((3,)), Checked(), keras.layers.Dense(1)]
    )
    model.compile('sgd', 'mse')
  wrong = _X.copy()
  wrong[50] = np.nan
  with pytest.raises(tf.errors.InvalidArgumentError, match='The layer got'):
    model.fit(wrong, _Y, verbose=0)
  assert len(model.fit(_X, _Y, verbose=0).history['loss']) == 1


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=4, ps=2)
def test_four_workers_count_each_step(strategy):
  class Steps(keras.metrics.Sum):
    def update_state(self, y_true, y_pred, sample_weight=None):
      return super().update_state(1.0)

  with strategy.scope():
    model = _build()
    model.compile(
      'adam', 'mse', metrics=[Steps('steps')], steps_per_execution=4
    )
  data = tf.data.Dataset.from_tensors((_X, _Y)).repeat(200)
  history = model.fit(data, verbose=0)
  assert history.history['steps'] == [200]
  assert int(model.optimizer.iterations) == 200


def test_each_batch_has_logs(model):
  seen = []

  class Logs(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      seen.append(('train', logs['loss']))

    def on_test_batch_end(self, batch, logs=None):
      seen.append(('test', logs['loss'], logs['mae']))

  model.fit(**_ARGUMENTS, callbacks=[Logs()])
  assert [kind for kind, *_ in seen] == ['train'] * 4
  for data in (_X, 2 * _X):  # logs are not those of the evaluation before
    seen.clear()
    arguments = {'batch_size': 8, 'verbose': 0}
    model.evaluate(data, _Y, callbacks=[Logs()], **arguments)
    assert len(seen) == 4
    expected = model.evaluate(data[:24], _Y[:24], **arguments)
    assert list(seen[0][1:]) == expected
