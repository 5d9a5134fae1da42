"""An evaluator beside training reads what training leaves in a directory."""

import functools
import json
import logging
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.keras import MarkTrainingEnd
from tfps.training import checkpoint_files
from tfps.training import checkpoint_loading
from tfps.training import end_marker
from tfps.training import training_end

_X = np.random.default_rng(0).random((24, 3), 'f')
_Y = _X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def quick(set_timeouts):
  set_timeouts(probe_every_secs=0.01, training_end_secs=0.0)


def make_model(units=4):
  # Built by its first batch, as that of a training program may be.
  model = keras.Sequential(
    [
      keras.layers.Dense(units),
      keras.layers.BatchNormalization(),
      keras.layers.Dropout(0.1),
      keras.layers.Dense(1),
    ]
  )
  # Eagerly, because tracing takes longer than all else.
  model.compile('adam', 'mse', metrics=['mae'], run_eagerly=True)
  return model


def make_data():
  # Not at once: another test may connect to a cluster, which takes the devices.
  return tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(8)


@functools.cache
def trained_model():
  """The model of the training program."""
  model = make_model()
  model.evaluate(make_data(), verbose=0)
  model.optimizer.build(model.trainable_variables)
  return model


@functools.cache
def evaluated_model():
  """The model of the evaluator, which is the same for many tests."""
  return make_model()


class Training:
  """A model whose weights change with each step, after which it is saved."""

  def __init__(self, folder, max_to_keep=None, wrap=None):
    self.model = trained_model()
    self.model.optimizer.iterations.assign(0)
    self._random = np.random.default_rng(0)
    wrap = wrap or (lambda model: tf.train.Checkpoint(model=model))
    self._manager = tf.train.CheckpointManager(
      wrap(self.model), str(folder), max_to_keep
    )

  def save(self, bias=0.5):
    for weight in self.model.weights:
      weight.assign(self._random.random(weight.shape))
    self.model.layers[-1].bias.assign([bias])
    iterations = self.model.optimizer.iterations
    iterations.assign_add(1)
    return self._manager.save(checkpoint_number=int(iterations))

  def mark_end(self):
    end_marker.mark(
      self._manager.directory, int(self.model.optimizer.iterations)
    )

  def metrics(self):
    return self.model.evaluate(make_data(), verbose=0, return_dict=True)


class OnTestEnd(keras.callbacks.Callback):
  """Does something after the first evaluation."""

  def __init__(self, function):
    super().__init__()
    self._function = function

  def on_test_end(self, logs=None):
    function, self._function = self._function, lambda: None
    function()


def evaluate(folder, **options):
  options = {'timeout_secs': 30.0, **options}
  return tfps.evaluate_checkpoints(
    evaluated_model, make_data(), folder, **options
  )


def lines(folder):
  text = (folder / 'evaluation' / 'evaluations.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
  'wrap',
  [
    lambda model: tf.train.Checkpoint(model),
    lambda model: tf.train.Checkpoint(model=model, optimizer=model.optimizer),
    lambda model: tf.train.Checkpoint(net=model),
    lambda model: tf.train.Checkpoint(
      root=tf.train.Checkpoint(model=model),
      global_step=tf.Variable(6, dtype=tf.int64),
    ),
  ],
  ids=['root', 'model and optimizer', 'other name', 'as train does'],
)
def test_metrics_are_those_of_the_model_that_was_saved(tmp_path, wrap):
  training = Training(tmp_path, wrap=wrap)
  path = training.save()
  (found,) = tfps.evaluate_checkpoints(
    make_model, make_data(), tmp_path, max_evaluations=1
  )
  assert found.metrics == training.metrics()
  assert found.checkpoint == path
  assert found.step in (1, 6)


@pytest.mark.parametrize('name', ['m-{epoch}.weights.h5', 'm-{epoch}.keras'])
def test_files_of_keras_are_checkpoints(tmp_path, name):
  model = make_model()
  history = model.fit(
    _X,
    _Y,
    batch_size=8,
    epochs=2,
    verbose=0,
    validation_data=make_data(),
    callbacks=[
      keras.callbacks.ModelCheckpoint(
        tmp_path / name, save_weights_only=name.endswith('h5')
      ),
      MarkTrainingEnd(tmp_path),
    ],
  ).history
  found = evaluate(tmp_path, every_checkpoint=True)
  assert [e.metrics['loss'] for e in found] == history['val_loss']
  assert [e.step for e in found] == [3, 6]


@pytest.mark.parametrize(
  ('every_checkpoint', 'expected'), [(False, [1, 3]), (True, [1, 2, 3])]
)
def test_checkpoints_that_come_meanwhile(tmp_path, every_checkpoint, expected):
  training = Training(tmp_path)
  training.save()

  def train_on():
    training.save()
    training.save()
    training.mark_end()

  found = evaluate(
    tmp_path,
    every_checkpoint=every_checkpoint,
    callbacks=[OnTestEnd(train_on)],
  )
  assert [e.step for e in found] == expected
  assert found[-1].metrics == training.metrics()


def test_a_file_that_is_written_again_is_another_checkpoint(tmp_path):
  training = Training(tmp_path / 'unused')
  latest = tmp_path / 'latest.weights.h5'
  training.save()
  training.model.save_weights(latest)

  def train_on():
    training.save()
    training.model.save_weights(latest)

  callbacks = [OnTestEnd(train_on)]
  found = evaluate(tmp_path, until_step=2, callbacks=callbacks)
  assert [e.step for e in found] == [1, 2]
  assert found[-1].metrics == training.metrics()


def test_a_checkpoint_that_vanishes_is_skipped(tmp_path, monkeypatch, caplog):
  training = Training(tmp_path, max_to_keep=1)
  path = training.save()
  held = checkpoint_files.held

  def delete_first(checkpoint, folder):
    if str(checkpoint.path) == path:
      training.save()  # which deletes the one before
    return held(checkpoint, folder)

  monkeypatch.setattr(checkpoint_files, 'held', delete_first)
  with caplog.at_level(logging.INFO, logger='absl'):
    (found,) = evaluate(tmp_path, max_evaluations=1)
  assert found.step == 2
  (line,) = [r for r in caplog.messages if 'was deleted' in r]
  assert path in line


def test_a_checkpoint_is_held_while_it_is_read(tmp_path, monkeypatch):
  training = Training(tmp_path, max_to_keep=1)
  training.save()
  before = training.metrics()
  load = checkpoint_loading.load

  def load_late(model, checkpoint):
    if not (tmp_path / training_end.NAME).exists():
      training.save()  # which deletes the one that is read
      training.mark_end()
    return load(model, checkpoint)

  monkeypatch.setattr(checkpoint_loading, 'load', load_late)
  found = evaluate(tmp_path)
  assert [e.step for e in found] == [1, 2]
  assert found[0].metrics == before


@pytest.mark.parametrize('part', ['.index', '.data-00000-of-00001'])
def test_a_broken_checkpoint_is_named_and_skipped(tmp_path, caplog, part):
  training = Training(tmp_path)
  training.save()
  path = pathlib.Path(training.save() + part)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  (found,) = evaluate(tmp_path, max_evaluations=1)
  assert found.step == 1
  (line,) = [m for m in caplog.messages if 'cannot be read' in m]
  assert 'ckpt-2 ' in line


@pytest.mark.parametrize('name', ['a.weights.h5', 'a.keras'])
def test_only_broken_checkpoints_are_an_error(tmp_path, name):
  (tmp_path / name).write_bytes(b'broken')
  end_marker.mark(tmp_path, 1)
  with pytest.raises(tfps.CheckpointError, match=f'read; {name} cannot'):
    evaluate(tmp_path)


def test_a_restart_goes_on_where_it_was(tmp_path):
  training = Training(tmp_path)
  training.save()
  first = evaluate(tmp_path, max_evaluations=1)
  path = tmp_path / 'evaluation' / 'evaluations.jsonl'
  path.write_text(path.read_text() + '{"checkpoint": "cut o')
  training.save()
  training.mark_end()
  found = evaluate(tmp_path, every_checkpoint=True)
  assert found[:1] == first
  assert [e.step for e in found] == [1, 2]
  assert evaluate(tmp_path, every_checkpoint=True) == found


def test_lines_and_summaries_have_what_was_evaluated(tmp_path):
  training = Training(tmp_path)
  training.save()
  (found,) = evaluate(tmp_path, max_evaluations=1)
  (line,) = lines(tmp_path)
  assert line['metrics'] == training.metrics() == found.metrics
  assert line['step'] == 1
  assert line['checkpoint'] == str(tmp_path / 'ckpt-1')
  assert line['time'] >= line['modified']
  (events,) = (tmp_path / 'evaluation').glob('events*')
  scalars = {
    value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
    for event in tf.compat.v1.train.summary_iterator(str(events))
    for value in event.summary.value
  }
  assert scalars == {n: (1, v) for n, v in found.metrics.items()}


@pytest.mark.parametrize(
  ('best', 'mode'),
  [('loss', 'min'), (lambda metrics: -metrics['loss'], 'max')],
  ids=['metric', 'function'],
)
def test_the_best_checkpoint_outlives_its_manager(tmp_path, best, mode):
  training = Training(tmp_path, max_to_keep=1)
  training.save()
  expected = training.metrics()

  def get_worse():
    training.save(bias=100.0)
    training.mark_end()

  found = evaluate(
    tmp_path, best=best, mode=mode, callbacks=[OnTestEnd(get_worse)]
  )
  assert [e.is_best for e in found] == [True, False]
  assert not (tmp_path / 'ckpt-1.index').exists()
  kept = tf.train.latest_checkpoint(tmp_path / 'evaluation' / 'best')
  tf.train.Checkpoint(model=training.model).restore(kept).expect_partial()
  assert training.metrics() == expected


def test_a_better_checkpoint_replaces_the_best(tmp_path):
  training = Training(tmp_path)
  training.save(bias=100.0)
  evaluate(tmp_path, best='loss', max_evaluations=1)
  training.save(bias=0.0)
  training.model.save_weights(tmp_path / 'a.weights.h5')
  found = evaluate(tmp_path, best='loss', max_evaluations=2)
  assert [e.is_best for e in found] == [True, True]
  folder = tmp_path / 'evaluation' / 'best'
  assert {p.name for p in folder.iterdir()} == {'a.weights.h5', 'best.json'}
  note = json.loads((folder / 'best.json').read_text())
  assert note['checkpoint'] == str(folder / 'a.weights.h5')
  assert note['metrics'] == found[-1].metrics


def test_a_value_that_is_no_number_is_never_the_best(tmp_path):
  training = Training(tmp_path)
  training.save(bias=np.nan)
  (found,) = evaluate(tmp_path, best='loss', max_evaluations=1)
  assert np.isnan(found.metrics['loss'])
  assert not found.is_best
  assert lines(tmp_path)[0]['metrics']['loss'] is None


def test_a_directory_that_stays_empty_is_named(tmp_path):
  with pytest.raises(tfps.DeadlineError, match=f'{tmp_path}/none: within 0.05'):
    evaluate(tmp_path / 'none', output_dir=tmp_path, timeout_secs=0.05)


def test_training_that_ends_without_a_checkpoint_is_an_error(tmp_path):
  end_marker.mark(tmp_path, 1)
  with pytest.raises(tfps.CheckpointError, match='ended without a checkpoint'):
    evaluate(tmp_path)


def test_it_ends_when_no_other_checkpoint_comes(tmp_path, caplog):
  Training(tmp_path).save()
  assert len(evaluate(tmp_path, timeout_secs=0.5)) == 1
  assert 'no other checkpoint came within 0.5 seconds' in caplog.text


def test_the_end_that_a_launcher_tells_is_final(tmp_path, monkeypatch):
  Training(tmp_path / 'd').save()
  monkeypatch.setenv(training_end.VARIABLE, str(tmp_path / 'end'))
  (tmp_path / 'end').touch()
  assert len(evaluate(tmp_path / 'd')) == 1


def test_a_marker_counts_once_it_has_stayed(tmp_path):
  signs = training_end.Signs(tmp_path, linger_secs=3600.0, launcher_file='')
  assert not signs.has_ended()
  end_marker.mark(tmp_path, 1)
  assert not signs.has_ended()
  at_once = training_end.Signs(tmp_path, linger_secs=0.0, launcher_file='')
  assert at_once.has_ended()
  end_marker.clear(tmp_path)
  assert not at_once.has_ended()


def test_another_model_is_an_error_that_names_what_lacks(tmp_path):
  training = Training(tmp_path)
  training.save()

  def make_deeper():
    model = make_model()
    model.add(keras.layers.Dense(1, name='late'))
    return model

  with pytest.raises(
    tfps.CheckpointError, match=r'ckpt-1 does not fit .*late/'
  ):
    tfps.evaluate_checkpoints(make_deeper, make_data(), tmp_path)


@pytest.mark.parametrize('name', ['ckpt', 'a.weights.h5'])
def test_a_model_of_other_shapes_is_an_error(tmp_path, name):
  training = Training(tmp_path / 'ckpt')
  training.save()
  training.model.save_weights(tmp_path / 'a.weights.h5')
  folder = tmp_path / 'ckpt' if name == 'ckpt' else tmp_path
  with pytest.raises(tfps.CheckpointError, match='does not fit the model'):
    tfps.evaluate_checkpoints(lambda: make_model(5), make_data(), folder)


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ({'best': 'auc'}, "best is 'auc', and the metrics are .*mae"),
    ({'best': 'loss', 'mode': 'auto'}, "mode is 'auto'"),
    ({'max_evaluations': 0}, 'max_evaluations is 0'),
    ({'timeout_secs': -1}, 'timeout_secs is -1'),
  ],
  ids=lambda value: str(value) if isinstance(value, dict) else '',
)
def test_wrong_arguments_are_named(tmp_path, options, words):
  Training(tmp_path).save()
  with pytest.raises(ValueError, match=words):
    evaluate(tmp_path, **options)


def test_a_model_that_is_not_compiled_is_an_error(tmp_path):
  Training(tmp_path).save()
  with pytest.raises(ValueError, match='no compiled Keras model'):
    tfps.evaluate_checkpoints(
      lambda: keras.Sequential([keras.layers.Dense(1)]), make_data(), tmp_path
    )


def test_an_error_of_the_program_is_not_one_of_a_checkpoint(tmp_path):
  Training(tmp_path).save()

  def fail():
    raise OSError('no vocabulary')

  with pytest.raises(OSError, match='no vocabulary'):
    tfps.evaluate_checkpoints(fail, make_data(), tmp_path)


def test_a_file_is_no_directory(tmp_path):
  path = tmp_path / 'ckpt-1.index'
  path.touch()
  with pytest.raises(ValueError, match='is a file'):
    evaluate(path, output_dir=tmp_path)
