"""A worker of TensorFlow's MultiWorkerMirroredStrategy, with tf_keras.

Usage: mwms.py MODEL FOLDER, with TF_CONFIG.
"""

import json
import os
import sys

import tensorflow as tf
import tf_keras

from benchmarks import networks
from benchmarks import orders
from benchmarks import workloads

_MODELS = {'mlp': networks.Mlp, 'clicks': networks.Clicks}


def main(name: str, folder: str) -> None:
  index = json.loads(os.environ['TF_CONFIG'])['task']['index']
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  model = _MODELS[name]()
  with strategy.scope():
    variables = model.variables()
    optimizer = model.optimizer(tf_keras)
    optimizer.build(variables)

  def step(batch: networks.Batch) -> None:
    gradients = model.gradients(variables, batch)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  @tf.function
  def execute(iterator: tf.data.Iterator) -> None:
    for _ in tf.range(workloads.STEPS_PER_EXECUTION):
      strategy.run(step, args=(next(iterator),))

  dataset = strategy.distribute_datasets_from_function(model.dataset)
  iterator = iter(dataset)
  for num_steps in orders.numbers_of_steps(folder, f'worker:{index}'):
    for _ in range(num_steps // workloads.STEPS_PER_EXECUTION):
      execute(iterator)


if __name__ == '__main__':
  main(*sys.argv[1:])
