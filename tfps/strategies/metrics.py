"""Metrics that a strategy's objects keep, for this process' registry."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import side_executor
from tfps.cluster import spec as spec_lib
from tfps.monitor import endpoint
from tfps.monitor import families
from tfps.monitor import registry as registry_lib

_Strategy = Any  # a `runtime.Runtime`, whose module imports this one
_Samples = Iterable[families.Sample]


def offer(strategy: _Strategy, task: spec_lib.Task, *, is_chief: bool) -> None:
  """Offers metrics of a strategy, in place of those of an earlier one.

  Args:
    strategy: the strategy.
    task: the task of this process.
    is_chief: whether this process reports what is kept on ps.
  """
  endpoint.begin(task, is_chief=is_chief)
  registry = registry_lib.of_process()
  registry.offer('strategy', strategy, _local)
  registry.offer('updates', strategy, _on_ps, reads_ps=True)


def reading(function: Callable[[], list[families.Sample]]) -> _Samples:
  """Calls a function that reads from ps, beside training.

  Args:
    function: reads the values.

  Raises:
    registry_lib.UnavailableError: a ps is lost.
  """
  try:
    with side_executor.run_aside('CPU:0'):
      return function()
  except tf.errors.OpError as error:
    raise registry_lib.UnavailableError(str(error)) from error


def _local(strategy: _Strategy) -> Iterator[families.Sample]:
  report = strategy.wire_report()
  for direction, by_ps in (('pull', report.pulled), ('push', report.pushed)):
    for ps, number in enumerate(by_ps):
      labels = (f'ps:{ps}', direction)
      yield families.Sample(families.TRANSFERRED, number, labels=labels)


def _on_ps(strategy: _Strategy) -> _Samples:
  if strategy.is_closed:  # the ps may have ended
    return ()
  return reading(functools.partial(_read, strategy))


def _read(strategy: _Strategy) -> list[families.Sample]:
  report = strategy.updates_report()
  samples = [
    families.Sample(families.UPDATES, report.updates),
    families.Sample(families.LATE, report.late),
    families.Sample(families.SHORT, report.short),
    families.Sample(families.REPEATED, report.repeated),
  ]
  if report.staleness:
    buckets = families.Buckets.of_numbers(report.staleness)
    samples.append(families.Sample(families.STALENESS, buckets))
  for number, queue in enumerate(getattr(strategy.extended, 'queues', ())):
    counts = next(iter(queue.report().epochs.values()), None)
    for state in ('to_do', 'doing', 'done') if counts else ():
      value = getattr(counts, state)
      labels = (str(number), state)
      samples.append(families.Sample(families.SPLITS, value, labels=labels))
  return samples
