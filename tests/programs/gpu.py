"""Trains small models in several ways, and keeps what comes of it.

Usage: gpu.py FORM FOLDER WAY ...

FORM is one of `_FORMS`: the chief of a coordinator, a chief whose cluster is in
its process, a worker between graphs, or one that divides its device in two. The
chief writes the weights after each way, one of `WAYS`, to FOLDER as WAY.npz,
and what it has seen of devices to `found.json`. The model of the last way is
saved in a checkpoint and restored.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import pathlib
import sys
from typing import Any

import keras
from keras import layers
import numpy as np
import tensorflow as tf

from tests.support import alone
import tfps

_ROWS, _BATCH, _EPOCHS, _NUM_IDS = 96, 8, 2, 12
_MEGABYTES = 1024  # of a logical GPU
_RNG = np.random.default_rng(0)
_X = _RNG.integers(0, _NUM_IDS, (_ROWS, 3))
_Y = _RNG.random((_ROWS, 1), dtype='f')


@dataclasses.dataclass(frozen=True)
class _Way:
  """How a model is trained.

  Attributes:
    policy: the policy of its layers.
    steps_per_execution: as in `compile`.
    own_step: whether `train` executes a step of this program, instead of `fit`.
    queue: whether batches are of a queue of splits.
    keys: type of the ids of a table keyed by any id, 'int64' or 'string'; empty
      for a table of a fixed size.
    strategy: arguments of the strategy.
  """

  policy: str = 'float32'
  steps_per_execution: int = 1
  own_step: bool = False
  queue: bool = False
  keys: str = ''
  strategy: Mapping[str, Any] = dataclasses.field(default_factory=dict)


WAYS = {
  'plain': _Way(),
  'several steps': _Way(steps_per_execution=4),
  'own step': _Way(steps_per_execution=4, own_step=True),
  'queue': _Way(steps_per_execution=4, queue=True),
  'sync': _Way(strategy={'updates': tfps.updates.Sync()}),
  'any ids': _Way(steps_per_execution=4, keys='int64'),
  'any words': _Way(keys='string'),
  'codecs': _Way(
    strategy={
      'wire': tfps.Wire(pull=tfps.codecs.BFloat16(), push=tfps.codecs.Float16())
    }
  ),
  'mixed precision': _Way(policy='mixed_float16'),
}

# By name, the class of the strategy, and where steps are computed.
_FORMS = {
  'coordinator': (tfps.ParameterServerStrategy, '/job:worker/task:0'),
  'in process': (tfps.ParameterServerStrategy, '/job:worker/task:0'),
  'between': (tfps.BetweenGraphStrategy, None),
  'two devices': (tfps.BetweenGraphStrategy, None),
}


def main(form: str, folder: pathlib.Path, names: list[str]) -> None:
  with contextlib.ExitStack() as stack:
    if form == 'in process':
      servers = stack.enter_context(tfps.testing.InProcessCluster(1, 2))
      cluster = servers.cluster
    else:
      cluster = tfps.resolve_cluster()
    if form == 'two devices':
      _divide_device()
    _train_all(form, cluster, folder, names)


def _train_all(form, cluster, folder, names) -> None:
  make, place = _FORMS[form]
  is_chief = cluster.task.index == 0
  variables = set()
  for name in names:
    way = WAYS[name]
    strategy = make(cluster, **way.strategy)
    model = _model(strategy, way)
    if way.own_step:
      _train(strategy, model, way.steps_per_execution)
    elif way.queue:
      _train_on_queue(strategy, model)
    else:
      number = 1 if cluster.task.job == 'chief' else cluster.num_workers
      part = slice(cluster.task.index, None, number)
      data = (_ids(way, _X[part]), _Y[part], _BATCH)
      model.fit(*data, epochs=_EPOCHS, shuffle=False, verbose=0)
    if cluster.task.job != 'chief':
      strategy.barrier(f'trained {name}', 100)
    if is_chief:
      np.savez(folder / f'{name}.npz', *_weights(model, way))
    variables |= {v.value.device for v in _all_variables(model)}
  found = {
    'variables': sorted(variables),
    'jobs': sorted(set(map(_job, tf.config.list_logical_devices('GPU')))),
    'computed': _computing_devices(strategy, place),
    'restored': not is_chief or _is_restored(strategy, way, model, folder),
  }
  if cluster.task.job != 'chief':
    strategy.barrier('restored', 100)
  if is_chief:
    (folder / 'found.json').write_text(json.dumps(found))


def _divide_device() -> None:
  """Has two logical devices on the GPU or, without one, on the CPU."""
  gpus = tf.config.list_physical_devices('GPU')
  (device,) = gpus or tf.config.list_physical_devices('CPU')
  megabytes = _MEGABYTES if gpus else None
  tf.config.set_logical_device_configuration(
    device,
    [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)] * 2,
  )


def _model(strategy, way: _Way) -> keras.Model:
  keras.config.set_dtype_policy(way.policy)
  with strategy.scope():
    model = alone.make_model(
      keras.optimizers.Adagrad(0.05),
      lambda: [layers.Dense(16, 'tanh'), layers.Dense(1, dtype='float32')],
      **_table(way),
      steps_per_execution=way.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)
  scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
  assert scales == (way.policy == 'mixed_float16')
  return model


def _table(way: _Way) -> dict[str, Any]:
  """The arguments of a table keyed by any id; none for another table."""
  if not way.keys:
    return {}
  return {'embedding': lambda: tfps.embeddings.Embedding(4), 'dtype': way.keys}


def _ids(way: _Way, ids: np.ndarray) -> Any:
  return tf.as_string(ids) if way.keys == 'string' else ids


def _weights(model, way: _Way) -> list[np.ndarray]:
  """The weights; of a table keyed by any id, the rows by their keys."""
  if not way.keys:
    return model.get_weights()
  first, *others = model.layers
  assert first.table.num_keys() == _NUM_IDS
  rows = first.table.lookup(_ids(way, np.arange(_NUM_IDS)), training=False)
  return [rows.numpy(), *(w for each in others for w in each.get_weights())]


def _train(strategy, model, steps_per_execution: int) -> None:
  loss_fn = keras.losses.MeanSquaredError()  # divides by the replicas, too

  def step(batch):
    x, y = batch
    with tf.GradientTape() as tape:
      loss = loss_fn(y, model(x, training=True))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)
    return {'loss': loss}

  def dataset_fn(context):
    dataset = tf.data.Dataset.from_tensor_slices((_X, _Y))
    return dataset.batch(context.get_per_replica_batch_size(_BATCH)).repeat()

  trainer = strategy
  if isinstance(strategy, tfps.ParameterServerStrategy):
    trainer = tfps.Coordinator(strategy)
  result = trainer.train(
    step,
    dataset_fn,
    steps=_EPOCHS * _ROWS // _BATCH,
    steps_per_execution=steps_per_execution,
  )
  assert np.isfinite(result.metrics['loss'])


def _train_on_queue(strategy, model) -> None:
  with strategy.scope():
    queue = tfps.input.SplitQueue(tfps.input.Ranges(_ROWS, _ROWS // 2))

  def dataset_fn(context):
    size = context.get_per_replica_batch_size(_BATCH)
    rows = queue.dataset(context).batch(size)
    return rows.map(lambda row: (tf.gather(_X, row), tf.gather(_Y, row)))

  model.fit(dataset_fn, verbose=0)


def _all_variables(model) -> list[Any]:
  return [*model.weights, *model.optimizer.variables]


def _job(device) -> str:
  return tf.DeviceSpec.from_string(device.name).job


def _computing_devices(strategy, place) -> list[str]:
  """The devices on which a step multiplies matrices, such as GPU:0."""
  found = set()

  def step():
    product = tf.matmul(tf.random.normal([9, 9]), tf.random.normal([9, 9]))
    found.add(product.device)
    return product

  with tf.device(place):
    result = tf.function(lambda: strategy.run(step))()
  if found == {''}:  # a step that is given no device returns what is on its own
    found = {result.backing_device}
  specs = map(tf.DeviceSpec.from_string, found)
  return sorted(f'{spec.device_type}:{spec.device_index}' for spec in specs)


def _is_restored(strategy, way, model, folder) -> bool:
  """Whether a new model gets what a checkpoint has of the trained one."""
  path = str(folder / 'checkpoint')
  _checkpoint(model).write(path)
  other = _model(strategy, way)
  _checkpoint(other).read(path).assert_consumed()
  return all(
    np.array_equal(own.numpy(), wanted.numpy())
    for own, wanted in zip(
      _all_variables(other), _all_variables(model), strict=True
    )
  )


def _checkpoint(model) -> tf.train.Checkpoint:
  return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


if __name__ == '__main__':
  main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:])
