"""Trains by AllReduceStrategy; keeps what it learned.

Usage: all_reduce.py HOW OPTIMIZER STEPS FOLDER

HOW is 'fit', 'train', or 'loop', which is a custom loop. Each worker writes the
model's weights to FOLDER, as INDEX.npz, after as many steps. Of 'train', a
checkpoint is in FOLDER/checkpoints.

From the environment: TIMEOUT_SECS and CONNECT_SECS are the strategy's, and
ALGORITHM is its implementation of communication. HIDE_GPU is the number of a
worker that hides its GPU from TensorFlow. With OWN_HOSTS, NCCL takes each
worker for one on a host of its own, so that they can share a GPU. With KEEP,
the checkpoint after so many steps stays in FOLDER/kept. MORE is the number of a
worker that has another variable. SLOW is the number of
the worker that takes its time for each execution until there is a file
FOLDER/go.
"""

import os
import pathlib
import shutil
import sys
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from tests.support import small
import tfps

PER_EXECUTION = 2

_SLOW_SECS = 1.0
_distribute = tf.distribute.experimental


def main(how: str, optimizer: str, steps: int, folder: pathlib.Path) -> None:
  cluster = tfps.resolve_cluster()
  if os.environ.get('HIDE_GPU') == str(cluster.task.index):
    tf.config.set_visible_devices([], 'GPU')
  if 'OWN_HOSTS' in os.environ:
    os.environ['NCCL_HOSTID'] = str(cluster.task)
  algorithm = os.environ.get('ALGORITHM', 'AUTO')
  strategy = tfps.AllReduceStrategy(
    cluster,
    _distribute.CommunicationOptions(
      implementation=_distribute.CommunicationImplementation[algorithm]
    ),
    timeout_secs=float(os.environ.get('TIMEOUT_SECS', 60)),
    connect_timeout_secs=float(os.environ.get('CONNECT_SECS', 60)),
  )
  context = strategy.input_context()
  number = context.input_pipeline_id
  keras.utils.set_random_seed(number)  # the chief's values count
  with strategy.scope():
    model = small.model(optimizer)
    others = [tf.Variable(0.0)] if os.environ.get('MORE') == str(number) else []
  if strategy.is_chief:
    small.initialize(model)
  tell = small.teller(strategy, folder, _SLOW_SECS)
  print('begins', flush=True)
  {'fit': _fit, 'train': _train, 'loop': _loop}[how](
    strategy, model, steps, folder, tell
  )
  devices = {weight.value.device for weight in model.trainable_variables}
  print('variables on', *sorted(devices), *others, flush=True)
  print('iterations', int(model.optimizer.iterations), flush=True)
  print(strategy.recovery_report(), strategy.updates_report(), flush=True)
  np.savez(folder / f'{number}.npz', *model.get_weights())


def _fit(strategy, model, steps, folder, tell) -> None:
  model.fit(
    small.whole(strategy.num_workers).repeat(),
    steps_per_epoch=steps,
    verbose=0,
    callbacks=[
      keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: tell(batch),
        on_epoch_end=lambda epoch, logs: print('logs', logs, flush=True),
      )
    ],
  )


def _train(strategy, model, steps, folder, tell) -> None:
  keep = int(os.environ.get('KEEP', 0))

  def hook(progress: Any) -> None:
    if keep and strategy.is_chief and progress.step == keep + PER_EXECUTION:
      shutil.copytree(folder / 'checkpoints', folder / 'kept')
    tell(progress.step)

  step = small.step_of(model)
  strategy.train(
    step,
    lambda context: small.dataset(context).repeat(),
    steps=steps,
    steps_per_execution=PER_EXECUTION,
    checkpoint=tf.train.Checkpoint(model=model),
    checkpoint_dir=str(folder / 'checkpoints'),
    checkpoint_every_steps=keep or None,
    hooks=[hook],
  )


def _loop(strategy, model, steps, folder, tell) -> None:
  step = small.step_of(model)
  data = strategy.experimental_distribute_dataset(
    small.whole(strategy.num_workers).repeat()
  )

  @tf.function
  def run(batch: Any) -> Any:
    loss = strategy.run(step, args=(batch,))['loss']
    return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)

  def run_and_reduce(batch: Any) -> Any:
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, run(batch), axis=None)

  batches = iter(data)
  while (done := int(strategy.num_steps.numpy())) < steps:
    batch = next(batches)
    strategy.surviving(lambda batch=batch: run_and_reduce(batch))
    tell(done + 1)


if __name__ == '__main__':
  logging.set_verbosity(logging.INFO)
  main(sys.argv[1], sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
