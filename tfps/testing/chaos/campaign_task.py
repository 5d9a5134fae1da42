"""What the tasks of a campaign train, and how they tell how they get on.

Variables are added to once a step, in `fit` one that the optimizer updates, so
that at the end they tell how many steps have been applied. Chief and workers
print, for each execution, `at STEP TIME` and at the end
`count LEAST MOST STEP TIME` and `done`; `fit` also says `loss LOSS`.
"""

from collections.abc import Callable
import time
from typing import Any

from absl import app
from absl import flags
import tensorflow as tf

import tfps
from tfps._utils import timeouts

_MODE = flags.DEFINE_enum(
  'mode',
  'coordinator',
  ['coordinator', 'between_graph', 'fit', 'between_graph_fit'],
  'How to train.',
)
_STEPS = flags.DEFINE_integer('steps', 1000, 'Where to stop.')
_PER_EXECUTION = flags.DEFINE_integer('steps_per_execution', 5, 'In one call.')
_EVERY = flags.DEFINE_float('every_secs', 1.0, 'Between two cuts.')
_REPLICAS = flags.DEFINE_integer('replicas', 0, 'Of each variable.')
_REPLICATE_EVERY = flags.DEFINE_float(
  'replicate_every_secs', None, 'Between two copies; by default, no copies.'
)
_TAKE_OVER = flags.DEFINE_float('take_over_secs', None, 'Of a lost ps.')
_DIRECTORY = flags.DEFINE_string('directory', None, 'Where cuts are kept.')
_TOGETHER = flags.DEFINE_bool(
  'together', False, 'Between graphs, whether all begin before one trains.'
)
_PAUSE = flags.DEFINE_float('pause_secs', 0.02, 'After an execution.')

_FEATURES = 4
_NUM_POINTS = 640
_NOISE = 0.1
_LEARNING_RATE = 0.05

tfps.define_flags()


def main(_: list[str]) -> None:
  """Does what this task has to do in its cluster."""
  cluster = tfps.resolve_cluster()
  mode = _MODE.value
  servers = ('ps',) if mode.startswith('between') else ('ps', 'worker')
  if cluster.task and cluster.task.job in servers:
    return tfps.serve(cluster)
  recovery = tfps.Recovery(
    _DIRECTORY.value or '',
    every_secs=_EVERY.value,
    take_over_secs=_TAKE_OVER.value,
    replicas=_REPLICAS.value,
    replicate_every_secs=_REPLICATE_EVERY.value,
  )
  if mode.startswith('between'):
    strategy: Any = tfps.BetweenGraphStrategy(cluster, recovery=recovery)
    if _TOGETHER.value:
      _begin_together(strategy)
    if mode.endswith('fit'):
      _fit(strategy)
    else:
      _train(strategy, strategy)
  else:
    strategy = tfps.ParameterServerStrategy(cluster, recovery=recovery)
    with tfps.Coordinator(
      strategy, timeout_secs=timeouts.current().start_secs
    ) as coordinator:
      if mode == 'fit':
        _fit(strategy)
      else:
        _train(coordinator, strategy)
  _say('done')


def _begin_together(strategy: tfps.BetweenGraphStrategy) -> None:
  """Waits, unless it has been restarted, for the others to start.

  Else the chief may be done, and have the ps end, before a worker is there.
  """
  step = strategy.global_step
  if int(step.numpy()) == 0:
    strategy.barrier('begin', timeouts.current().start_secs)
    if _MODE.value.endswith('fit') and strategy.is_chief:
      step.assign_add(1)  # `fit` does not count here


def _train(trainer: Any, strategy: Any) -> None:
  """Adds one to each variable in each step; the trainer may be the strategy."""
  variables = _variables(strategy)
  trainer.train(
    lambda batch: _add_one(variables),
    _ones,
    steps=_STEPS.value,
    steps_per_execution=_PER_EXECUTION.value,
    hooks=[_saying(lambda: trainer.global_step)],
  )
  _say_counts(variables, trainer.global_step)


def _fit(strategy: Any) -> None:
  tf.keras.utils.set_random_seed(1)
  tf.keras.config.disable_traceback_filtering()  # should a run fail
  with strategy.scope():
    additions = _Additions()
    dense = tf.keras.layers.Dense(1)
    model = tf.keras.Sequential(
      [tf.keras.layers.Input((_FEATURES,)), additions, dense]
    )
    model.compile(
      tf.keras.optimizers.SGD(_LEARNING_RATE),
      'mse',
      steps_per_execution=_PER_EXECUTION.value,
    )
    model.optimizer.build(model.trainable_variables)
  iterations = model.optimizer.iterations
  say = _saying(lambda: iterations.value)

  def on_train_batch_end(batch: int, logs: object) -> None:
    say(batch)
    model.stop_training = int(iterations.numpy()) >= _STEPS.value

  model.fit(
    _line(),
    epochs=1_000_000,
    steps_per_epoch=10 * _PER_EXECUTION.value,
    verbose=0,
    callbacks=[
      tf.keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)
    ],
  )
  _say_counts([additions.count], iterations)
  kernel, bias = dense.get_weights()
  x, y = _points()
  loss = float(tf.reduce_mean(tf.square(x @ kernel + bias - y)))
  _say('loss', loss)


class _Additions(tf.keras.layers.Layer):
  """Has the optimizer add one, in each update, to its only variable."""

  def __init__(self) -> None:
    super().__init__()
    self.count = self.add_weight(shape=(), initializer='zeros', name='count')

  def call(self, inputs: Any) -> Any:
    self.add_loss(-self.count / _LEARNING_RATE)
    return inputs


def _variables(strategy: Any) -> list[Any]:
  with strategy.scope():
    return [
      tf.Variable(0, dtype=tf.int64, trainable=False, name='count'),
      tf.Variable(tf.zeros([1000, 8]), name='table'),
      tf.Variable(tf.zeros([100]), name='vector'),
    ]


def _add_one(variables: list[Any]) -> None:
  for variable in variables:
    variable.assign_add(tf.ones(variable.shape, variable.dtype))


def _ones(context: tf.distribute.InputContext) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensors(1).repeat()


def _points() -> tuple[tf.Tensor, tf.Tensor]:
  """Points, and about what a linear model should make of them."""
  x = tf.random.stateless_normal([_NUM_POINTS, _FEATURES], seed=[1, 2])
  noise = tf.random.stateless_normal([_NUM_POINTS, 1], seed=[3, 4])
  return x, x @ tf.constant([[1.0], [-2.0], [3.0], [0.5]]) + _NOISE * noise


def _line() -> tf.data.Dataset:
  """The points in batches, for ever."""
  return tf.data.Dataset.from_tensor_slices(_points()).repeat().batch(16)


def _saying(step: Callable[[], Any]) -> Callable[[object], None]:
  def say(_: object) -> None:
    _say('at', int(step().numpy()), f'{time.time():.3f}')
    time.sleep(_PAUSE.value)

  return say


def _say_counts(variables: list[Any], step: Any) -> None:
  # First: others may not be done yet.
  began, counted = time.time(), int(step.numpy())
  values = [tf.convert_to_tensor(v) for v in variables]
  least = min(float(tf.reduce_min(value)) for value in values)
  most = max(float(tf.reduce_max(value)) for value in values)
  _say('count', least, most, counted, f'{began:.6f}')


def _say(*words: object) -> None:
  # One string: what others log must not come between its parts.
  print(' '.join(map(str, words)) + '\n', end='', flush=True)


if __name__ == '__main__':
  app.run(main)
