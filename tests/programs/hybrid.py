"""Trains tables on the ps and all else with the workers; keeps what it learned.

Usage: hybrid.py HOW OPTIMIZER STEPS FOLDER

HOW is 'fit' or 'train'. Each worker writes the model's weights to FOLDER, as
INDEX.npz, after as many steps. Of 'train', a checkpoint is in
FOLDER/checkpoints.

From the environment: CHOICE is one of `small.CHOICES`, TIMEOUT_SECS the
strategy's, FEWER how many steps less the last worker does. With KEEP, the
checkpoint after so many steps stays in FOLDER/kept. SLOW is the number of the
worker that takes its time for each execution until there is a file FOLDER/go.
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


def main(how: str, optimizer: str, steps: int, folder: pathlib.Path) -> None:
  strategy = tfps.replication.HybridStrategy(
    tfps.resolve_cluster(),
    choose=small.CHOICES[os.environ.get('CHOICE', 'rule')],
    rows_per_step=small.SIZE * small.WIDTH,
    timeout_secs=float(os.environ.get('TIMEOUT_SECS', 60)),
  )
  keras.utils.set_random_seed(strategy.task.index)  # the chief's values count
  with strategy.scope():
    model = small.model(optimizer)
    model.optimizer.build(model.trainable_variables)
  print(strategy.hybrid_report(), flush=True)
  context = strategy.input_context()
  if context.input_pipeline_id == context.num_input_pipelines - 1:
    steps -= int(os.environ.get('FEWER', 0))
  if strategy.is_chief and not int(strategy.global_step):
    small.initialize(model)
  strategy.wait_for_chief('weights', 60)

  tell = small.teller(strategy, folder, _SLOW_SECS)

  print('begins', flush=True)
  if how == 'fit':
    model.fit(
      small.dataset(context).repeat(),
      steps_per_epoch=steps,
      verbose=0,
      callbacks=[
        keras.callbacks.LambdaCallback(
          on_train_batch_end=lambda batch, logs: tell(batch)
        )
      ],
    )
  else:
    keep = int(os.environ.get('KEEP', 0))

    def hook(progress: Any) -> None:
      if keep and strategy.is_chief and progress.step == keep + PER_EXECUTION:
        shutil.copytree(folder / 'checkpoints', folder / 'kept')
      tell(progress.step)

    strategy.train(
      small.step_of(model),
      lambda context: small.dataset(context).repeat(),
      steps=steps,
      steps_per_execution=PER_EXECUTION,
      checkpoint=tf.train.Checkpoint(model=model),
      checkpoint_dir=str(folder / 'checkpoints'),
      checkpoint_every_steps=keep or None,
      hooks=[hook],
    )
  print('iterations', int(model.optimizer.iterations), flush=True)
  print(strategy.recovery_report(), strategy.updates_report(), flush=True)
  np.savez(folder / f'{strategy.task.index}.npz', *model.get_weights())
  strategy.barrier('end', 60)


logging.set_verbosity(logging.INFO)
main(sys.argv[1], sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
