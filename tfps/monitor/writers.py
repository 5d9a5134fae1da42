"""Writers of this process' metrics: log, JSON lines and TensorBoard."""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import json
import math
import os
import pathlib
import time
import types
from typing import Any
from typing import Protocol

from absl import logging

from tfps._utils import private_files
from tfps._utils import threads
from tfps.monitor import families
from tfps.monitor import rates as rates_lib
from tfps.monitor import registry as registry_lib


class Writer(Protocol):
  """Interface of writers; errors are logged, and do not stop training."""

  def write(self, reading: rates_lib.Reading) -> None:
    """Writes all values of a moment."""


class PeriodicWriter:
  """Writes this process' metrics periodically, and once more at its end.

  It is a context manager; `start` and `stop` do the same.

  Args:
    writers: get each reading, in a thread.
    every_secs: the period.

  Raises:
    ValueError: the period is not above 0.
  """

  def __init__(
    self, writers: Sequence[Writer], *, every_secs: float = 10.0
  ) -> None:
    if not every_secs > 0:
      raise ValueError(
        f'PeriodicWriter: every_secs is {every_secs!r}. Give a number above 0.'
      )
    self._writers = tuple(writers)
    self._rates = rates_lib.Rates()
    self._period = threads.Periodic('tfps-monitor', every_secs, self.write)

  def start(self) -> None:
    """Starts to write."""
    registry_lib.of_process().is_read = True
    self._period.start()

  def stop(self) -> None:
    """Writes a last time, and no more; stopping twice is harmless."""
    self._period.stop()
    self.write()

  def write(self) -> None:
    """Writes the current values."""
    samples = registry_lib.of_process().collect()
    reading = self._rates.reading(samples, time.time())
    for writer in self._writers:
      try:
        writer.write(reading)
      except OSError as error:
        logging.error('%s could not write metrics: %s', writer, error)
      except Exception:  # of a user's writer: neither training nor others end
        logging.exception('%s could not write metrics.', writer)

  def __enter__(self) -> 'PeriodicWriter':
    self.start()
    return self

  def __exit__(
    self,
    error_type: type[BaseException] | None,
    error: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    self.stop()


class Log(Writer):
  """Writer of one log line: rates of counters, and values of gauges."""

  def write(self, reading: rates_lib.Reading) -> None:
    values = []
    for sample in reading.samples:
      key = rates_lib.key(sample)
      if sample.family.kind is families.Kind.COUNTER:
        if rate := reading.rates.get(key):
          values.append(f'{_name(sample)} {rate:.6g}/s')
      elif not isinstance(sample.value, families.Buckets):
        values.append(f'{_name(sample)} {sample.value:.6g}')
    logging.info('metrics: %s', ', '.join(values))


class JsonLines(Writer):
  """Writer of a line of JSON for each reading.

  A line has `time` and `metrics`: for each value its `name`, `labels`, `value`
  and, of counters, the `rate` per second since the line before. A histogram has
  `buckets`, pairs of an upper bound and a number of values, and `sum`.

  Args:
    path: of the file, to which lines are appended.
  """

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = pathlib.Path(path)

  def __repr__(self) -> str:
    return f'JsonLines({str(self._path)!r})'

  def write(self, reading: rates_lib.Reading) -> None:
    line = {
      'time': reading.at,
      'metrics': [as_json(sample, reading.rates) for sample in reading.samples],
    }
    private_files.make_folder(self._path.parent)
    with private_files.open_file(self._path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')


class TensorBoard(Writer):
  """Writer of scalars and histograms for TensorBoard.

  They are at the latest global step that is known. Those of counters are rates
  per second.

  Args:
    directory: for a file of events; each process has its own file.

  Raises:
    ImportError: TensorBoard is not installed.
  """

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    try:
      from tensorboard.compat.proto import event_pb2
      from tensorboard.compat.proto import summary_pb2
      from tensorboard.plugins.histogram import metadata
      from tensorboard.summary.writer import event_file_writer
      from tensorboard.util import tensor_util
    except ImportError as error:
      raise ImportError(
        'Metrics for TensorBoard need it: pip install "tfps[tensorboard]".'
      ) from error
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._metadata, self._make_tensor = metadata, tensor_util.make_tensor_proto
    self._directory = os.fspath(directory)
    self._file: Any = None
    self._make_file = event_file_writer.EventFileWriter

  def __repr__(self) -> str:
    return f'TensorBoard({self._directory!r})'

  def write(self, reading: rates_lib.Reading) -> None:
    if self._file is None:
      self._file = self._make_file(self._directory)
    step = max(
      (
        int(sample.value)
        for sample in reading.samples
        if sample.family is families.GLOBAL_STEP
        and not isinstance(sample.value, families.Buckets)
      ),
      default=0,
    )
    values = [
      value
      for sample in reading.samples
      if (value := self._value(sample, reading.rates)) is not None
    ]
    self._file.add_event(
      self._event(
        wall_time=reading.at, step=step, summary=self._summary(value=values)
      )
    )
    self._file.flush()

  def _value(
    self, sample: families.Sample, rates: Mapping[rates_lib.Key, float]
  ) -> Any:
    tag, value = f'tfps/{_name(sample).removeprefix("tfps_")}', sample.value
    if isinstance(value, families.Buckets):
      return self._summary.Value(
        tag=tag,
        tensor=self._make_tensor(_edges(value)),
        metadata=self._metadata.create_summary_metadata(
          display_name=None, description=sample.family.help
        ),
      )
    if sample.family.kind is families.Kind.COUNTER:
      rate = rates.get(rates_lib.key(sample))
      if rate is None:
        return None
      return self._summary.Value(tag=f'{tag}_per_second', simple_value=rate)
    return self._summary.Value(tag=tag, simple_value=value)


def as_json(
  sample: families.Sample, rates: Mapping[rates_lib.Key, float]
) -> dict[str, Any]:
  """Returns a value as `JsonLines` writes it.

  Args:
    sample: the value.
    rates: rates of counters; see `rates.Reading`.
  """
  facts: dict[str, Any] = {
    'name': sample.family.name,
    'labels': sample.label_pairs,
  }
  value = sample.value
  if isinstance(value, families.Buckets):
    bounds = [None if math.isinf(b) else b for b in value.bounds]
    facts['buckets'] = list(zip(bounds, _differences(value), strict=True))
    facts['sum'] = value.total
    return facts
  facts['value'] = value if math.isfinite(value) else str(value)
  rate = rates.get(rates_lib.key(sample))
  return facts if rate is None else {**facts, 'rate': rate}


def _name(sample: families.Sample) -> str:
  """Returns the name of a value with its labels: what/task/label."""
  return '/'.join((sample.family.name, sample.task, *sample.labels))


def _differences(value: families.Buckets) -> list[int]:
  pairs = itertools.pairwise((0, *value.counts))
  return [after - before for before, after in pairs]


def _edges(value: families.Buckets) -> list[list[float]]:
  """Returns left edge, right edge and number of each bucket."""
  ends = [*value.bounds[:-1], 2 * value.bounds[-2] if value.bounds[1:] else 1.0]
  starts = [0.0, *ends[:-1]]
  numbers = map(float, _differences(value))
  return [list(row) for row in zip(starts, ends, numbers, strict=True)]
