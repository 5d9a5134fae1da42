"""Trains by AllReduceStrategy with steps that write variables themselves.

Usage: all_reduce_by_hand.py STEPS

Each worker prints what it has then. In a step, a worker's number, from 1, is
subtracted from one variable, and is the gradient of another one; after the
optimizer's update, a third one is set to it. In as many steps of a loop of its
own, it is subtracted from a fourth, and its mean over all workers is from a
fifth, each after an evaluation.
"""

import sys

import keras
import tensorflow as tf

import tfps


def main(steps: int) -> None:
  strategy = tfps.AllReduceStrategy()
  number = 1.0 + strategy.input_context().input_pipeline_id
  with strategy.scope():
    by_hand, trained, in_loop, reduced = (tf.Variable(0.0) for _ in range(4))
    last = tf.Variable(0.0, trainable=False)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([trained])

  def subtract(batch):
    by_hand.assign_sub(batch)

  def train(batch):
    optimizer.apply([batch / strategy.num_replicas_in_sync], [trained])
    last.assign(batch)

  @tf.function
  def run():
    strategy.run(lambda: in_loop.assign_sub(number))

  def average(value):
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, value)

  @tf.function
  def evaluate():
    return strategy.run(average, (int(number),))

  @tf.function
  def reduce():
    strategy.run(lambda: reduced.assign_sub(average(number)))

  for step in (run, reduce):
    for _ in range(steps):
      mean = float(strategy.surviving(evaluate))
      strategy.surviving(step)
  print('evaluated', mean, 'steps', int(strategy.num_steps), flush=True)

  for i, step in enumerate((subtract, train), 1):
    strategy.train(
      step,
      lambda context: tf.data.Dataset.from_tensors(number).repeat(),
      steps=i * steps,
      steps_per_execution=2,
    )
  made = by_hand, trained, last, in_loop, reduced
  print('values', *(float(each.numpy()) for each in made), flush=True)


if __name__ == '__main__':
  main(int(sys.argv[1]))
