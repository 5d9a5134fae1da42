"""Families of metrics: what each name means, in the model of Prometheus.

Values of a family differ in their labels. All have `job` and `task`, the task
that a value is about, such as worker and worker:0; a chief also reports what it
knows of its workers.
"""

from collections.abc import Sequence
import dataclasses
import enum
import itertools
import math


class Kind(enum.Enum):
  """Kind of a family: how its values change."""

  COUNTER = 'counter'
  GAUGE = 'gauge'
  HISTOGRAM = 'histogram'


@dataclasses.dataclass(frozen=True)
class Buckets:
  """Value of a histogram.

  Attributes:
    bounds: upper bounds of the buckets, inclusive; the last is infinite.
    counts: the number of observations up to each bound.
    total: the sum of the observations.
  """

  bounds: tuple[float, ...]
  counts: tuple[int, ...]
  total: float

  @classmethod
  def of_numbers(cls, counts: Sequence[int]) -> 'Buckets':
    """Returns the buckets of observed numbers 0, 1, 2, and so on.

    Buckets end at 0, 1, 3, 7 and so on.

    Args:
      counts: how often each number was observed; the last number stands for
        all larger ones, too.
    """
    sums = list(itertools.accumulate(counts))
    last = len(counts) - 1
    ends = [2**i - 1 for i in range(last.bit_length()) if 2**i - 1 < last]
    total = sum(number * count for number, count in enumerate(counts))
    return cls(
      (*map(float, ends), math.inf),
      (*(sums[end] for end in ends), sums[-1]),
      float(total),
    )


@dataclasses.dataclass(frozen=True)
class Family:
  """Family of metrics.

  Attributes:
    name: the name for Prometheus, `tfps_<what>_<unit>`.
    kind: how its values change.
    help: a sentence on what it measures.
    labels: its labels besides `job` and `task`.
  """

  name: str
  kind: Kind
  help: str
  labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sample:
  """A value at one moment.

  Attributes:
    family: the family.
    value: the value; `Buckets` of a histogram.
    task: the task that it is about, such as worker:0; empty for the process
      that reports it.
    labels: values of the family's labels, in their order.
  """

  family: Family
  value: float | Buckets
  task: str = ''
  labels: tuple[str, ...] = ()

  @property
  def label_pairs(self) -> dict[str, str]:
    """All labels by name."""
    own = dict(zip(self.family.labels, self.labels, strict=True))
    return {'job': self.task.partition(':')[0], 'task': self.task, **own}


_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# Each process.
START = Family(
  'tfps_start_time_seconds', _GAUGE, 'Start of the process, as a Unix time.'
)
MEMORY = Family('tfps_memory_bytes', _GAUGE, 'Resident memory of the process.')
CPU = Family('tfps_cpu_seconds_total', _COUNTER, 'CPU time of the process.')
FAILED_READS = Family(
  'tfps_failed_reads_total',
  _COUNTER,
  'Reads of metrics from ps that failed or were not answered in time.',
)

# Training.
STEPS = Family(
  'tfps_steps_total', _COUNTER, 'Training steps that a task has done.'
)
EXAMPLES = Family(
  'tfps_examples_total',
  _COUNTER,
  'Examples of these steps, counted by train.',
)
EXECUTIONS = Family(
  'tfps_executions_total', _COUNTER, 'Executions of one or more steps.'
)
GLOBAL_STEP = Family(
  'tfps_global_step', _GAUGE, 'Steps of all tasks, as train knows it.'
)
LOOP = Family(
  'tfps_loop_seconds_total',
  _COUNTER,
  'Time of the training loop by part: prepare, execute, save, report.',
  ('part',),
)
STEP_METRIC = Family(
  'tfps_step_metric',
  _GAUGE,
  'Metric that the step returns, of the latest execution.',
  ('name',),
)
IN_FLIGHT = Family(
  'tfps_executions_in_flight', _GAUGE, 'Executions that workers are doing.'
)
QUEUED = Family(
  'tfps_executions_queued', _GAUGE, 'Executions that wait for a worker.'
)

# Transfers and updates.
TRANSFERRED = Family(
  'tfps_transferred_bytes_total',
  _COUNTER,
  'Bytes between workers and a ps; direction is pull or push.',
  ('ps', 'direction'),
)
UPDATES = Family('tfps_updates_total', _COUNTER, 'Updates of variables.')
LATE = Family(
  'tfps_late_gradients_total',
  _COUNTER,
  'Gradients that came too late for their update and were dropped.',
)
SHORT = Family(
  'tfps_short_updates_total',
  _COUNTER,
  'Updates of fewer gradients than the policy wants.',
)
REPEATED = Family(
  'tfps_repeated_updates_total',
  _COUNTER,
  'Updates begun again, because the worker that made them was lost.',
)
STALENESS = Family(
  'tfps_staleness_updates',
  _HISTOGRAM,
  'Updates between the read of parameters and the update computed from them.',
)

# Recovery.
LOST = Family('tfps_lost_tasks_total', _COUNTER, 'Losses of a worker.')
RETURNED = Family(
  'tfps_returned_tasks_total',
  _COUNTER,
  'Returns of a worker, or of a ps with its variables.',
)
REPEATED_STEPS = Family(
  'tfps_repeated_steps_total',
  _COUNTER,
  'Upper bound of the steps applied twice after a loss.',
)
SNAPSHOTS = Family('tfps_snapshots_total', _COUNTER, 'Snapshots written.')
SNAPSHOT_SECONDS = Family(
  'tfps_snapshot_seconds_total', _COUNTER, 'Time taken to write snapshots.'
)
SNAPSHOT_AGE = Family(
  'tfps_snapshot_age_seconds', _GAUGE, 'Age of the latest snapshot.'
)

# Input and tables.
SPLITS = Family(
  'tfps_queue_splits',
  _GAUGE,
  'Splits of a queue in the earliest unfinished epoch; state is to_do, doing '
  'or done.',
  ('queue', 'state'),
)
TABLE_KEYS = Family(
  'tfps_table_keys', _GAUGE, 'Keys of a table that have a row.', ('table',)
)
ADMITTED = Family(
  'tfps_table_admitted_keys_total',
  _COUNTER,
  'Keys that were given a row; one that returns counts again.',
  ('table',),
)
REFUSED = Family(
  'tfps_table_refused_keys_total',
  _COUNTER,
  'Keys without a row that an admission refused, at each look-up in training.',
  ('table',),
)
EVICTED = Family(
  'tfps_table_evicted_keys_total',
  _COUNTER,
  'Keys whose row was taken.',
  ('table',),
)
TABLE_LATE = Family(
  'tfps_table_late_rows_total',
  _COUNTER,
  'Updates of rows dropped, as their keys were evicted meanwhile.',
  ('table',),
)
TABLE_ROWS = Family(
  'tfps_table_stored_rows',
  _GAUGE,
  'Rows, each slot of one counted likewise, of a table with storage; place is '
  'memory or file.',
  ('table', 'place'),
)
TABLE_BYTES = Family(
  'tfps_table_stored_bytes',
  _GAUGE,
  'Bytes that these rows take in memory, and their files on disks.',
  ('table', 'place'),
)
TABLE_MOVES = Family(
  'tfps_table_moved_rows_total',
  _COUNTER,
  'Moves of these rows; to is memory or file.',
  ('table', 'to'),
)

# Evaluation.
EVALUATIONS = Family(
  'tfps_evaluations_total', _COUNTER, 'Checkpoints evaluated.'
)
EVALUATED_STEP = Family(
  'tfps_evaluated_step', _GAUGE, 'Step of the last checkpoint evaluated.'
)
