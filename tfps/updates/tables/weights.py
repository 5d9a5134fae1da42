"""Variables that a shard of a table consists of."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from tfps.updates.tables import counts

# Those of which each row of a table has an element.
BY_ROW = ('rows', 'keys', 'addresses', 'scores')


class Weight(NamedTuple):
  """A variable other than the rows themselves.

  Attributes:
    name: of the variable, among those of a shard.
    values: what it begins with: a number for all, or one for each element.
    length: number of elements.
    dtype: type of the elements.
    grows: whether it gets longer.
  """

  name: str
  values: int | Sequence[int] = 0
  length: int = counts.NUM_INITIAL
  dtype: str = 'int64'
  grows: bool = True


def of_shard(num_shards: int, *, removes: bool) -> list[Weight]:
  """Returns what each shard has.

  Args:
    num_shards: how many shards the table has.
    removes: whether rows are taken from keys, or not all keys get rows.
  """
  initial = counts.initial(num_shards)
  found = [
    Weight('keys'),
    Weight('counts', initial, len(initial), grows=False),
  ]
  if removes:
    found += [Weight('addresses', -1), Weight('free', length=1)]
  return found


def prefixed(prefix: str, weights: Iterable[Weight]) -> list[Weight]:
  """Returns weights whose names begin with a prefix."""
  return [each._replace(name=prefix + each.name) for each in weights]
