"""Session code as it was written for TensorFlow 1, on tasks that tfps serves.

A graph under `replica_device_setter` and a `MonitoredTrainingSession` learn to
read handwritten digits. Start one process for each task:

  python train.py --job_name=ps --task_index=0 \
    --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224
  python train.py --job_name=worker --task_index=0 ...
  python train.py --job_name=worker --task_index=1 ...

or all of them: python -m tfps.launch --num_chiefs=0 train.py
"""

from absl import app
from absl import flags
import numpy as np
from sklearn import datasets
import tensorflow as tf

import tfps

tf1 = tf.compat.v1

_STEPS = flags.DEFINE_integer('steps', 1000, 'Global step to reach.')
_BATCH_SIZE = 64
_NUM_HELD_OUT = 360

tfps.define_flags()


def main(argv: list[str]) -> None:
  """Runs one task."""
  del argv
  cluster = tfps.resolve_cluster()
  if cluster.task.job == 'ps':
    tfps.serve(cluster)  # in place of server.join(), which never returns
    return
  server = tfps.Server(cluster)
  with server.presence():  # at the end, tells the ps that it is done
    train(cluster, server.target)


def train(cluster: tfps.Cluster, target: str) -> None:
  """Trains in one worker until all workers together have done the steps."""
  task = cluster.task
  worker = f'/job:worker/task:{task.index}'
  (x, y), held_out = digits()
  with tf.Graph().as_default():
    with tf1.device(
      tf1.train.replica_device_setter(
        worker_device=worker, cluster=cluster.spec()
      )
    ):
      images = tf1.placeholder(tf.float32, [None, 64])
      labels = tf1.placeholder(tf.int64, [None])
      loss, _ = softmax_regression(images, labels)
      _, held_out_accuracy = softmax_regression(*held_out)
      step = tf1.train.get_or_create_global_step()
      train_op = tf1.train.AdagradOptimizer(0.1, use_locking=True).minimize(
        loss, global_step=step
      )
    with tf1.train.MonitoredTrainingSession(
      master=target,
      is_chief=task.index == 0,
      hooks=[tf1.train.StopAtStepHook(last_step=_STEPS.value)],
      config=tf1.ConfigProto(device_filters=['/job:ps', worker]),
    ) as session:
      print(f'{task} trains', flush=True)
      random = np.random.default_rng(task.index)
      seen = 0
      while not session.should_stop():
        batch = random.integers(len(x), size=_BATCH_SIZE)
        _, seen, correct = session.run(
          [train_op, step, held_out_accuracy],
          {images: x[batch], labels: y[batch]},
        )
      print(f'{task} step {seen} held-out accuracy {correct:.3f}', flush=True)


def softmax_regression(
  images: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """The loss and the accuracy of a linear classifier."""
  with tf1.variable_scope('softmax', reuse=tf1.AUTO_REUSE, use_resource=True):
    weights = tf1.get_variable('weights', [64, 10])
    biases = tf1.get_variable('biases', [10])
  logits = tf.matmul(images, weights) + biases
  loss = tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )
  hits = tf.equal(tf.argmax(logits, axis=1), labels)
  return loss, tf.reduce_mean(tf.cast(hits, tf.float32))


def digits() -> tuple[
  tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]:
  """1,797 images of 8 x 8 pixels with labels: for training, and held out."""
  x, y = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(x))
  x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
  n = _NUM_HELD_OUT
  return (x[n:], y[n:]), (x[:n], y[:n])


if __name__ == '__main__':
  app.run(main)
