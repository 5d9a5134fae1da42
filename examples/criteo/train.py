"""Learns which advertisements are clicked; every task runs this file.

    python examples/criteo/train.py
    tfps launch --num_evaluators=1 examples/criteo/train.py

`data.py` writes the rows. The chief trains, writes deltas of the model
meanwhile, and leaves `result.json` in `--output_dir`. The evaluator follows by
the deltas, as a server of predictions would.
"""

import json
import pathlib
import sys
import time

from absl import app
from absl import flags
from absl import logging
import follow
import inputs
import keras
import model as model_lib

import tfps

_DATA = flags.DEFINE_string(
  'data', 'runs/criteo/data', 'Folder that data.py has written to.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/criteo/growing', 'Folder for the results; a new one.'
)
_TABLE = flags.DEFINE_enum(
  'table',
  'growing',
  ['growing', 'separate', 'static'],
  'Where vectors of ids are: in a table that grows, in one for each category, '
  'or in a table of a fixed size, into which ids are hashed.',
)
_CAPACITY = flags.DEFINE_integer(
  'capacity', 50_000, 'How many vectors there are at most.'
)
_MIN_COUNT = flags.DEFINE_integer(
  'min_count', 2, 'How often an id is seen before it gets a vector.'
)
_WIDTH = flags.DEFINE_integer('width', 8, 'Elements of a vector.')
_BOTTOM = flags.DEFINE_multi_integer(
  'bottom', [32], 'Units of the layers that numbers go through.'
)
_TOP = flags.DEFINE_multi_integer(
  'top', [64, 32], 'Units of the layers that products go through.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 256, 'Rows in one step.')
_STEPS_PER_EXECUTION = flags.DEFINE_integer(
  'steps_per_execution', 8, 'Steps that a worker does in one call.'
)
_LEARNING_RATE = flags.DEFINE_float('learning_rate', 0.05, 'Of Adagrad.')
_DELTAS_EVERY_SECS = flags.DEFINE_float(
  'deltas_every_secs', 3.0, 'The pause after each delta.'
)
_SEED = flags.DEFINE_integer('seed', 1, 'Of initial values.')

# Keras' 0.1 would make the first steps of each row, of which most have only a
# few, so small that little is learnt.
_INITIAL_ACCUMULATOR = 1e-5

tfps.define_flags()


def main(_: list[str]) -> None:
  logging.set_verbosity(logging.WARNING)  # What matters here is printed.
  cluster = tfps.resolve_cluster()
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  output = pathlib.Path(_OUTPUT_DIR.value)
  if cluster.task.job == 'evaluator':
    held_out = inputs.HeldOut.read(pathlib.Path(_DATA.value))
    scores = follow.follow(output / 'deltas', output / 'result.json', held_out)
    return follow.save(scores, output / 'served.json')
  return train(cluster, output)


def train(cluster: tfps.Cluster, output: pathlib.Path) -> None:
  """This process, the chief, has the workers execute the steps."""
  if output.exists():  # the evaluator would take it for that of this run
    sys.exit(f'{output} exists. Remove it, or give another --output_dir.')
  output.mkdir(parents=True)
  data = pathlib.Path(_DATA.value)
  keras.utils.set_random_seed(_SEED.value)
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    vectors = _vectors()
    model = model_lib.dlrm(vectors, _BOTTOM.value, _TOP.value)
    model.compile(
      keras.optimizers.Adagrad(
        _LEARNING_RATE.value, initial_accumulator_value=_INITIAL_ACCUMULATOR
      ),
      'binary_crossentropy',
      steps_per_execution=_STEPS_PER_EXECUTION.value,
      jit_compile=False,
    )
    dataset = inputs.training(data, _BATCH_SIZE.value)
  deltas = tfps.serving.Deltas(output / 'deltas', _DELTAS_EVERY_SECS.value)
  began_at = time.monotonic()
  model.fit(dataset, callbacks=[deltas], verbose=2)
  secs = time.monotonic() - began_at
  result = {
    'table': _TABLE.value,
    'steps': int(model.optimizer.iterations),
    'seconds': secs,
    'auc': _auc(model, data),
    'seen': inputs.count_ids(data),
    **vectors.counts(),
  }
  strategy.close()
  (output / 'result.json').write_text(json.dumps(result, indent=2) + '\n')
  print(
    f'{result["steps"]} steps in {secs:.1f} seconds, held-out AUC '
    f'{result["auc"]:.4f}'
  )


def _auc(model: keras.Model, data: pathlib.Path) -> float:
  held_out = inputs.HeldOut.read(data)
  clicks = model.predict(held_out.inputs, batch_size=4096, verbose=0)
  return held_out.auc(clicks)


def _vectors() -> model_lib.Growing | model_lib.Static:
  if _TABLE.value == 'static':
    return model_lib.Static(_WIDTH.value, _CAPACITY.value)
  return model_lib.Growing(
    _WIDTH.value,
    min_count=_MIN_COUNT.value,
    capacity=_CAPACITY.value,
    separate=_TABLE.value == 'separate',
  )


if __name__ == '__main__':
  app.run(main)
