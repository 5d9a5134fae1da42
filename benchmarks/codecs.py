"""What encoding and decoding cost, in this process."""

from collections.abc import Callable
from collections.abc import Iterator
import statistics

import tensorflow as tf

from benchmarks import runner
from benchmarks import tables
from tfps import codecs

_NUM_VALUES = 2_350_000
_NUM_CALLS = 5  # of a turn
_NUM_ROUNDS = 15
_CODECS = (
  codecs.Float16(),
  codecs.BFloat16(),
  codecs.Int8(),
  codecs.Int8(stochastic=True),
  codecs.TopK(0.01),
  codecs.TopK(0.1),
  codecs.RandomK(0.01),
  codecs.RandomK(0.1),
  codecs.OneBit(),
)
_ENCODE, _DECODE, _FEEDBACK = 'encode', 'decode', 'encode with error feedback'
_WHAT = (_ENCODE, _DECODE, _FEEDBACK)

Costs = dict[str, dict[str, list[float]]]


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  size = 10_000 if quick else _NUM_VALUES
  ways = {str(codec): _ways(codec, size) for codec in _CODECS}
  costs = runner.in_turns(
    {
      f'{name} {what}': _repeated(call)
      for name, each in ways.items()
      for what, call in each.items()
    },
    num_steps=_NUM_CALLS,
    num_rounds=2 if quick else _NUM_ROUNDS,
  )
  by_codec = {
    name: {what: costs[f'{name} {what}'] for what in each}
    for name, each in ways.items()
  }
  yield _table(by_codec, size)


def _ways(codec: codecs.Codec, size: int) -> dict[str, Callable[[], object]]:
  """What is timed of a codec, by its name; it is traced when first called."""
  values = tf.random.stateless_normal([size], seed=(1, 2))
  feedback = codecs.ErrorFeedback(codec)
  encode = tf.function(codec.encode)
  decode = tf.function(lambda parts: codec.decode(parts, size, values.dtype))
  encode_with = tf.function(feedback.encode_with)
  parts = encode(values)
  residual = feedback.initial_residual(size, values.dtype)
  return {
    _ENCODE: lambda: encode(values),
    _DECODE: lambda: decode(parts),
    _FEEDBACK: lambda: encode_with(values, residual),
  }


def _repeated(call: Callable[[], object]) -> Callable[[], None]:
  def run() -> None:
    for _ in range(_NUM_CALLS):
      call()

  return run


def _table(costs: Costs, size: int) -> tables.Table:
  return tables.Table(
    'codecs',
    f'{size / 1e6:.3g} million float32 ({4 * size / 1e6:.2g} MB)',
    ('codec', *(f'{what}, ms' for what in _WHAT)),
    [
      [f'`{name}`', *(tables.with_spread(each[what]) for what in _WHAT)]
      for name, each in costs.items()
    ],
    tables.Bars(
      'ms to encode and decode',
      [
        statistics.median(each[_ENCODE]) + statistics.median(each[_DECODE])
        for each in costs.values()
      ],
    ),
    measured=costs,
  )
