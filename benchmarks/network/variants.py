"""The wires and policies that are compared on slow links."""

import dataclasses
from typing import Any

import tfps
from tfps import codecs
from tfps import updates


@dataclasses.dataclass(frozen=True)
class Variant:
  """How our strategy is told to train.

  Attributes:
    wire: as for the strategy; None for its default, which fuses.
    updates: likewise.
  """

  wire: tfps.Wire | None = None
  updates: Any = None


def both_ways(codec: codecs.Codec, *, prefetch: int = 0) -> tfps.Wire:
  """A wire that encodes parameters as it does gradients."""
  return tfps.Wire(pull=codec, push=codec, prefetch=prefetch)


# By the rate of the benchmarks' perceptron.
_LOCAL = updates.LocalSteps(8, inner_learning_rate=0.01)

# Ours, for throughput. What they do to accuracy is another question.
FAST = {
  'no codec': Variant(),
  'prefetch 1': Variant(tfps.Wire(prefetch=1)),
  'prefetch 2': Variant(tfps.Wire(prefetch=2)),
  'BFloat16': Variant(both_ways(codecs.BFloat16())),
  'Int8': Variant(both_ways(codecs.Int8())),
  'Int8, prefetch 1': Variant(both_ways(codecs.Int8(), prefetch=1)),
  'LocalSteps(8)': Variant(updates=_LOCAL),
  'LocalSteps(8), Int8': Variant(both_ways(codecs.Int8()), _LOCAL),
}


def learning(local_steps: updates.LocalSteps) -> dict[str, Variant]:
  """Ours, for learning; the first loses nothing.

  Args:
    local_steps: with rates that suit what is learnt.
  """
  sparse = codecs.ErrorFeedback(codecs.TopK(0.01))
  one_bit = codecs.ErrorFeedback(codecs.OneBit())
  return {
    'no codec': Variant(),
    'Float16': Variant(both_ways(codecs.Float16())),
    'Int8': Variant(both_ways(codecs.Int8())),
    'push ErrorFeedback(TopK(0.01))': Variant(tfps.Wire(push=sparse)),
    'push ErrorFeedback(OneBit())': Variant(tfps.Wire(push=one_bit)),
    f'LocalSteps({local_steps.n})': Variant(updates=local_steps),
  }
