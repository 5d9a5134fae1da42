"""Program of a campaign's tasks, which trains and logs its progress.

Each step adds one to variables (in `fit`, the optimizer does so to one), so
that their final values are the number of steps that were applied. Chief and
workers print `at STEP TIME` for each execution, and at the end
`count LEAST MOST STEP TIME` and `done`; `fit` also prints `loss LOSS`.
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
  'Mode of training.',
)
_STEPS = flags.DEFINE_integer('steps', 1000, 'Steps of the run.')
_PER_EXECUTION = flags.DEFINE_integer(
  'steps_per_execution', 5, 'Steps in a call.'
)
_EVERY = flags.DEFINE_float('every_secs', 1.0, 'Seconds between snapshots.')
_REPLICAS = flags.DEFINE_integer('replicas', 0, 'Replicas of each variable.')
_REPLICATE_EVERY = flags.DEFINE_float(
  'replicate_every_secs', None, 'Seconds between copies to replicas.'
)
_TAKE_OVER = flags.DEFINE_float(
  'take_over_secs', None, 'Seconds until a lost ps is hosted.'
)
_DIRECTORY = flags.DEFINE_string('directory', None, 'Folder of snapshots.')
_TOGETHER = flags.DEFINE_bool(
  'together', False, 'Whether between-graph tasks wait for all to begin.'
)
_PAUSE = flags.DEFINE_float('pause_secs', 0.02, 'Pause after an execution.')

_FEATURES = 4
_NUM_POINTS = 640
_NOISE = 0.1
_LEARNING_RATE = 0.05

tfps.define_flags()


def main(_: list[str]) -> None:
  """Serves or trains, according to the task's job."""
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
  _print('done')


def _begin_together(strategy: tfps.BetweenGraphStrategy) -> None:
  """Waits until all tasks have started, except in a restarted task.

  Otherwise the chief may end, and the ps with it, before a worker has started.
  """
  step = strategy.global_step
  if int(step.numpy()) == 0:
    strategy.barrier('begin', timeouts.current().start_secs)
    if _MODE.value.endswith('fit') and strategy.is_chief:
      step.assign_add(1)  # `fit` leaves it at 0


def _train(trainer: Any, strategy: Any) -> None:
  """Adds one to each variable in each step."""
  variables = _variables(strategy)
  trainer.train(
    lambda batch: _add_one(variables),
    _ones,
    steps=_STEPS.value,
    steps_per_execution=_PER_EXECUTION.value,
    hooks=[_progress_printer(lambda: trainer.global_step)],
  )
  _print_counts(variables, trainer.global_step)


def _fit(strategy: Any) -> None:
  tf.keras.utils.set_random_seed(1)
  tf.keras.config.disable_traceback_filtering()
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
  print_progress = _progress_printer(lambda: iterations.value)

  def on_train_batch_end(batch: int, logs: object) -> None:
    print_progress(batch)
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
  _print_counts([additions.count], iterations)
  kernel, bias = dense.get_weights()
  x, y = _points()
  loss = float(tf.reduce_mean(tf.square(x @ kernel + bias - y)))
  _print('loss', loss)


class _Additions(tf.keras.layers.Layer):
  """Layer whose loss makes each update add one to its only variable."""

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
  """Returns random points, and a noisy linear function of them."""
  x = tf.random.stateless_normal([_NUM_POINTS, _FEATURES], seed=[1, 2])
  noise = tf.random.stateless_normal([_NUM_POINTS, 1], seed=[3, 4])
  return x, x @ tf.constant([[1.0], [-2.0], [3.0], [0.5]]) + _NOISE * noise


def _line() -> tf.data.Dataset:
  """Returns batches of the points, repeated."""
  return tf.data.Dataset.from_tensor_slices(_points()).repeat().batch(16)


def _progress_printer(step: Callable[[], Any]) -> Callable[[object], None]:
  def print_progress(_: object) -> None:
    _print('at', int(step().numpy()), f'{time.time():.3f}')
    time.sleep(_PAUSE.value)

  return print_progress


def _print_counts(variables: list[Any], step: Any) -> None:
  # Read before the values, because other tasks may still add to them.
  began, counted = time.time(), int(step.numpy())
  values = [tf.convert_to_tensor(v) for v in variables]
  least = min(float(tf.reduce_min(value)) for value in values)
  most = max(float(tf.reduce_max(value)) for value in values)
  _print('count', least, most, counted, f'{began:.6f}')


def _print(*words: object) -> None:
  # One write, so that other threads' output does not interrupt the line.
  print(' '.join(map(str, words)) + '\n', end='', flush=True)


if __name__ == '__main__':
  app.run(main)
