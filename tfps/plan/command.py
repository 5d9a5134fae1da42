"""The command `tfps plan`, also `python -m tfps.plan`."""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import math
import re
from typing import Any

from tfps._utils import option_types
from tfps.plan import advice
from tfps.plan import jobs
from tfps.plan import models
from tfps.plan import predictions
from tfps.plan import reports

_UNITS = {'': 1, 'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}
_CODECS = ('none', 'float16', 'bfloat16', 'int8', 'topk', 'onebit')
# Codecs that do not degrade the model, see docs/wire.md.
_ADVISED = ('float16', 'int8')
_TOPK_RATIO = 0.01


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a prediction and advice.

  Args:
    argv: the arguments; by default those of the process.

  Returns:
    The exit status.
  """
  parser = _parser()
  options = parser.parse_args(argv)
  try:
    job, examples = _job(options), _examples(options)
    prediction = predictions.predict(job)
  except ValueError as error:
    parser.error(str(error))
  print(reports.report(job, prediction, examples=examples))
  if options.advice:
    print('\n'.join(_advice(job)))
  return 0


def _advice(job: jobs.Job) -> Iterator[str]:
  tried = {name: (_codec(name), _codec(name)) for name in _ADVISED}
  found = advice.options(job, tried)
  yield ''
  yield 'Advice, by an estimate that is less exact:'
  if not found:
    yield '  none: neither more ps, nor a codec, nor prefetching would help'
  for option in found:
    yield f'  {option}'


def _job(options: argparse.Namespace) -> jobs.Job:
  return jobs.Job(
    _model(options),
    options.num_workers,
    options.num_ps,
    jobs.Links(
      options.mbit_per_sec,
      rack_mbit_per_sec=options.rack_mbit_per_sec,
      connection_mbit_per_sec=options.connection_mbit_per_sec,
    ),
    costs=jobs.Costs(
      step_secs=options.step_ms / 1e3,
      apply_bytes_per_sec=options.apply_bytes_per_sec,
      codec_bytes_per_sec=options.codec_bytes_per_sec,
    ),
    pull=_codec(options.pull),
    push=_codec(options.push),
    prefetch=options.prefetch,
    mode=options.mode,
    backup_workers=options.backup_workers,
    by_host=options.by_host,
    compute_spread=options.compute_spread,
    steps_per_execution=options.steps_per_execution,
    steps_per_update=options.steps_per_update,
    host_of=dict(options.host_of) or None,
    rack_of=dict(options.rack_of) or None,
  )


def _model(options: argparse.Namespace) -> models.Model:
  compute_secs = options.compute_ms / 1e3
  variables = [
    models.Variable((rows, width), rows=used)
    for rows, width, used in reversed(options.table)
  ]
  if options.model_bytes:
    dense = models.Model.of_bytes(
      options.model_bytes, compute_secs, num_variables=options.num_variables
    )
    variables += dense.variables
  if not variables:
    raise ValueError(
      'the model has no parameters. Give --model_bytes, --table or both.'
    )
  return models.Model(tuple(variables), compute_secs)


def _examples(options: argparse.Namespace) -> reports.Examples | None:
  if options.total_bytes and not options.example_bytes:
    raise ValueError('--total_bytes needs --example_bytes, of one of them.')
  if options.example_bytes and not options.batch:
    raise ValueError('--example_bytes needs --batch, how many a step has.')
  if not options.batch:
    return None
  return reports.Examples(
    options.batch, options.example_bytes, options.total_bytes
  )


def _codec(name: str) -> Any:
  if name == 'none':
    return None
  from tfps.wire import codecs  # imports TensorFlow

  made: dict[str, Callable[[], Any]] = {
    'float16': codecs.Float16,
    'bfloat16': codecs.BFloat16,
    'int8': codecs.Int8,
    'topk': lambda: codecs.ErrorFeedback(codecs.TopK(_TOPK_RATIO)),
    'onebit': lambda: codecs.ErrorFeedback(codecs.OneBit()),
  }
  return made[name]()


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps plan',
    usage='%(prog)s --num_workers=N --num_ps=N --mbit_per_sec=N '
    '--compute_ms=N [options]',
    description='Predicts how fast a cluster trains, and what limits it.',
    epilog='Bytes may be written as 100M or 10T; these are powers of 10.',
    allow_abbrev=False,
  )
  cluster = parser.add_argument_group('the cluster')
  cluster.add_argument(
    '--num_workers', type=option_types.positive, required=True
  )
  cluster.add_argument('--num_ps', type=option_types.positive, required=True)
  cluster.add_argument(
    '--mbit_per_sec',
    type=_positive,
    required=True,
    help="the rate of each host's link, each way",
  )
  cluster.add_argument(
    '--rack_mbit_per_sec',
    type=_positive,
    help="the rate of each rack's link to the others",
  )
  cluster.add_argument(
    '--connection_mbit_per_sec',
    type=_positive,
    help='the maximum rate of one connection',
  )
  cluster.add_argument(
    '--host_of',
    type=_pair,
    action='append',
    default=[],
    metavar='TASK=HOST',
    help='such as worker:0=a; by default each task has a host of its own, '
    'called ps-0 or worker-0',
  )
  cluster.add_argument(
    '--rack_of',
    type=_pair,
    action='append',
    default=[],
    metavar='HOST=RACK',
    help='such as a=r1, for all hosts or for none',
  )
  _add_model(parser.add_argument_group('the model'))
  _add_training(parser.add_argument_group('the training'))
  _add_costs(parser.add_argument_group('other costs of tasks'))
  parser.add_argument(
    '--advice',
    action=argparse.BooleanOptionalAction,
    default=True,
    help='whether to suggest improvements; requires TensorFlow',
  )
  return parser


def _add_model(group: Any) -> None:
  group.add_argument(
    '--model_bytes',
    type=_bytes_of,
    default=0.0,
    help='size of float32 parameters that each step reads as a whole; may be '
    'left out if there are tables',
  )
  group.add_argument('--num_variables', type=option_types.positive, default=50)
  group.add_argument(
    '--table',
    type=_table,
    action='append',
    default=[],
    metavar='ROWS,WIDTH,USED',
    help='a float32 embedding table, and the number of rows a step reads',
  )
  group.add_argument(
    '--compute_ms',
    type=_not_negative,
    required=True,
    help='computing time of a step of one worker, forward and backward',
  )
  group.add_argument(
    '--batch', type=option_types.positive, help='examples in a step'
  )
  group.add_argument(
    '--example_bytes',
    type=_bytes_of,
    default=0.0,
    help='size of an example, if workers read input over the same links',
  )
  group.add_argument(
    '--total_bytes', type=_bytes_of, default=0.0, help='size of all examples'
  )


def _add_training(group: Any) -> None:
  group.add_argument('--mode', choices=jobs.MODES, default='async')
  group.add_argument('--backup_workers', type=int, default=0)
  group.add_argument(
    '--by_host',
    action='store_true',
    help='workers of a host push as one, in mode sync',
  )
  group.add_argument(
    '--compute_spread',
    type=_not_negative,
    default=0.0,
    help='standard deviation over mean of the time that steps compute',
  )
  group.add_argument('--pull', choices=_CODECS[:4], default='none')
  group.add_argument('--push', choices=_CODECS, default='none')
  group.add_argument('--prefetch', type=int, default=0)
  group.add_argument(
    '--steps_per_execution', type=option_types.positive, default=8
  )
  group.add_argument(
    '--steps_per_update',
    type=option_types.positive,
    default=1,
    help='n of updates.Accumulate(n) or LocalSteps(n)',
  )


def _add_costs(group: Any) -> None:
  costs = jobs.Costs()
  group.add_argument(
    '--step_ms', type=_not_negative, default=costs.step_secs * 1e3
  )
  group.add_argument(
    '--apply_bytes_per_sec', type=_bytes_of, default=costs.apply_bytes_per_sec
  )
  group.add_argument(
    '--codec_bytes_per_sec', type=_bytes_of, default=costs.codec_bytes_per_sec
  )


def _positive(text: str) -> float:
  number = _not_negative(text)
  if not number:
    raise argparse.ArgumentTypeError(f'{text!r} is not more than 0')
  return number


def _not_negative(text: str) -> float:
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not 0 <= number < math.inf:
    raise argparse.ArgumentTypeError(f'{text!r} is no number from 0 upwards')
  return number


def _bytes_of(text: str) -> float:
  match = re.fullmatch(r'([0-9.]+)([KMGT]?)B?', text)
  if not match or match[1].count('.') > 1 or match[1] == '.':
    raise argparse.ArgumentTypeError(
      f'{text!r} is no number of bytes such as 100M'
    )
  return float(match[1]) * _UNITS[match[2]]


def _table(text: str) -> tuple[int, int, int]:
  parts = text.split(',')
  if len(parts) != 3:
    raise argparse.ArgumentTypeError(f'{text!r} is not ROWS,WIDTH,USED')
  rows, width, used = map(option_types.positive, parts)
  return rows, width, used


def _pair(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not (name and equals and value):
    raise argparse.ArgumentTypeError(f'{text!r} is not NAME=VALUE')
  return name, value
