"""Table of a prediction, for people: rates, sizes, and the busiest links."""

from collections.abc import Iterator
import dataclasses

from tfps.plan import jobs
from tfps.plan import predictions

_NUM_SHOWN = 6  # links, the busiest ones


@dataclasses.dataclass(frozen=True)
class Examples:
  """Size of the training data.

  Attributes:
    batch: number of examples per step of a worker.
    num_bytes: bytes of one example; 0 if input does not use the network.
    total_bytes: bytes of all examples; 0 if unknown.
  """

  batch: int
  num_bytes: float = 0.0
  total_bytes: float = 0.0


def report(
  job: jobs.Job,
  prediction: predictions.Prediction,
  *,
  examples: Examples | None = None,
) -> str:
  """Returns a prediction as a table.

  Args:
    job: the job.
    prediction: its prediction.
    examples: the training data; None to leave it out.
  """
  rows = [
    ('a step of a worker', f'{_secs(prediction.secs_per_step)}'),
    ('steps of all workers', f'{_number(prediction.steps_per_sec)} a second'),
    ('updates', f'{_number(prediction.updates_per_sec)} a second'),
    ('bottleneck', _bottleneck(prediction)),
    ('parameters', f'{_bytes(sum(prediction.ps_bytes))}'),
    ('the fullest ps holds', f'{_bytes(max(prediction.ps_bytes))}'),
  ]
  if examples is not None:
    rows += _example_rows(job, prediction, examples)
  width = max(len(name) for name, _ in rows)
  lines = [f'{name:<{width}}  {text}' for name, text in rows]
  return '\n'.join([*lines, '', *_links(job, prediction)])


def _links(job: jobs.Job, prediction: predictions.Prediction) -> Iterator[str]:
  yield f'{"busiest":<28}{"bytes a step":>14}{"busy":>7}'
  busiest = sorted(
    {*prediction.num_bytes, *prediction.busy},
    key=lambda name: (-prediction.busy.get(name, 0.0), name),
  )
  for name in busiest[:_NUM_SHOWN]:
    # Only links have bytes; they are averages per step of one worker.
    number = prediction.num_bytes.get(name)
    text = '' if number is None else f'{number:,.0f}'
    busy = min(1.0, prediction.busy.get(name, 0.0))
    yield f'{name:<28}{text:>14}{busy:>7.0%}'
  left = len(busiest) - _NUM_SHOWN
  if left > 0:
    yield f'and {left} more'


def _example_rows(
  job: jobs.Job, prediction: predictions.Prediction, examples: Examples
) -> Iterator[tuple[str, str]]:
  rate = prediction.steps_per_sec * examples.batch
  yield 'examples', f'{_number(rate)} a second'
  if examples.num_bytes:
    of_worker = rate / job.num_workers * examples.num_bytes
    share = of_worker * 8e-6 / job.links.mbit_per_sec
    yield (
      'input of each worker',
      f'{_bytes(of_worker)} a second, {share:.0%} of its link',
    )
  if examples.num_bytes and examples.total_bytes:
    secs = examples.total_bytes / examples.num_bytes / rate
    yield 'all examples once', f'{secs / 3600:,.3g} hours'


def _bottleneck(prediction: predictions.Prediction) -> str:
  name = prediction.bottleneck
  if name == 'latency':
    return 'latency: tasks wait for each other, and nothing is busy for long'
  return f'{name}, busy {min(1.0, prediction.busy[name]):.0%} of the time'


def _secs(secs: float) -> str:
  return f'{secs * 1e3:,.4g} ms'


def _number(number: float) -> str:
  return f'{number:,.0f}' if number >= 1000 else f'{number:.4g}'


def _bytes(number: float) -> str:
  for unit in ('TB', 'GB', 'MB', 'kB'):
    size = {'TB': 1e12, 'GB': 1e9, 'MB': 1e6, 'kB': 1e3}[unit]
    if number >= size:
      return f'{number / size:,.3g} {unit}'
  return f'{number:,.0f} B'
