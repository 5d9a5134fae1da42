"""The chief that the command `python -m benchmarks.network` runs: it trains.

Prints a line of JSON once the first steps, which trace and connect, are done,
and another at the end.
"""

import json
import sys

import tensorflow as tf

import tfps

NUM_VARIABLES = 8
_NUM_VALUES = 125_000
NUM_BYTES = 4 * NUM_VARIABLES * _NUM_VALUES
_TIMEOUT_SECS = 120.0


def main(num_first_steps: int, num_steps: int) -> None:
  cluster = tfps.resolve_cluster()
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    variables = [
      tf.Variable(tf.ones([_NUM_VALUES]), name=f'v{i}')
      for i in range(NUM_VARIABLES)
    ]

  def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
    # Half of the squares' sum: its gradient is the value.
    with tf.GradientTape() as tape:
      loss = tf.add_n([tf.reduce_mean(v * v) for v in variables]) * batch
    for variable, gradient in zip(
      variables, tape.gradient(loss, variables), strict=True
    ):
      variable.assign_sub(0.01 * _NUM_VALUES / 2 * gradient)
    return {'loss': loss}

  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS) as coordinator:
    for steps in (num_first_steps, num_first_steps + num_steps):
      result = coordinator.train(step, _ones, steps=steps)
      line = {'steps': result.step, 'secs': result.secs, **result.metrics}
      print(json.dumps(line), flush=True)


def _ones(context: tf.distribute.InputContext) -> tf.data.Dataset:
  del context
  return tf.data.Dataset.from_tensors(1.0).repeat()


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
