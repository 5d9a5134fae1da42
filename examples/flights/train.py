"""Learns which flights leave late, on a cluster; every task runs this file.

    python examples/flights/train.py
    python -m tfps.launch --num_workers=2 --num_ps=2 examples/flights/train.py

The chief says how it goes and leaves a checkpoint, `result.json` and
`report.png` in `--output_dir`.
"""

import pathlib
import sys
import types

from absl import app
from absl import flags
from absl import logging

import tfps

_MODE = flags.DEFINE_enum(
  'mode',
  None,
  ['coordinator', 'between_graph'],
  'Whether one chief has the workers execute steps, or each worker trains by '
  'itself. By default coordinator if there is a chief, else between_graph.',
)
_EPOCHS = flags.DEFINE_integer(
  'epochs', 3, 'How often to see each flight at most.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 1024, 'Flights in one step.')
_STEPS_PER_EXECUTION = flags.DEFINE_integer(
  'steps_per_execution', 10, 'Steps that a worker does in one call.'
)
_MAX_EXAMPLES = flags.DEFINE_integer(
  'max_examples', None, 'How many flights to use; by default all.'
)
_SEED = flags.DEFINE_integer('seed', 1, 'Of initial values and shuffling.')
_BASELINE_AUC = flags.DEFINE_float(
  'baseline_auc', None, "The baseline's AUC, to save training it again."
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/flights', 'Where the chief leaves its results.'
)

# The tasks that only serve: in coordinator mode the workers are told what to
# execute, between graphs they run the program.
_SERVERS = {'coordinator': ('ps', 'worker'), 'between_graph': ('ps',)}

tfps.define_flags()


def main(_: list[str]) -> None:
  logging.set_verbosity(logging.WARNING)  # What matters here is printed.
  cluster = tfps.resolve_cluster()
  mode = _MODE.value or _default_mode(cluster)
  if cluster.task.job in _SERVERS[mode]:
    return tfps.serve(cluster)

  modes = _modes()

  settings = modes.Settings(
    epochs=_EPOCHS.value,
    batch_size=_BATCH_SIZE.value,
    steps_per_execution=_STEPS_PER_EXECUTION.value,
    max_examples=_MAX_EXAMPLES.value,
    seed=_SEED.value,
    baseline_auc=_BASELINE_AUC.value,
    folder=pathlib.Path(_OUTPUT_DIR.value),
  )
  modes.MODES[mode](cluster, settings)


def _modes() -> types.ModuleType:
  # Imported here, as servers need no scikit-learn, matplotlib or flights.
  try:
    import modes
  except ModuleNotFoundError as error:
    sys.exit(
      f"{error}. Install the extra 'examples': pip install 'tfps[examples]'."
    )
  return modes


def _default_mode(cluster: tfps.Cluster) -> str:
  has_chief = 'chief' in (cluster.task.job, *cluster.jobs)
  return 'coordinator' if has_chief else 'between_graph'


if __name__ == '__main__':
  app.run(main)
