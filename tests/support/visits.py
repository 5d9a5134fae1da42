"""Cases of a queue whose numbers a hybrid's workers visit."""

import dataclasses

from tests.support import small

BATCH = 5
PER_EXECUTION = 2


@dataclasses.dataclass(frozen=True)
class Case:
  """A queue, and the calls that visit it.

  Attributes:
    how: 'train', 'fit', or 'model', which fits the one of `small`.
    total: how many numbers there are.
    size: how many of them are in a split.
    epochs: how often each is visited.
    visitation: the queue's.
    steps: those of a first call, after which another one does the rest.
    is_slow: whether one worker takes its time, until it is told to go.
  """

  how: str
  total: int
  size: int
  epochs: int = 1
  visitation: str = 'exactly_once'
  steps: int | None = None
  is_slow: bool = False


def _slow(how: str, visitation: str) -> Case:
  return Case(how, 600, 60, visitation=visitation, is_slow=True)


CASES = {
  'train': Case('train', 130, 30, epochs=2),
  'fit': Case('fit', 130, 30, epochs=2),
  'train in two calls': Case('train', 100, 100, steps=9),
  'fit in two calls': Case('fit', 100, 100, steps=9),
  'model': Case('model', small.NUM_EXAMPLES, small.NUM_EXAMPLES, epochs=2),
  'slow train': _slow('train', 'exactly_once'),
  'slow fit': _slow('fit', 'exactly_once'),
  'slow fit, at least once': _slow('fit', 'at_least_once'),
}
