"""The messages of a step and their sizes.

They are computed by the same codecs, chunking, placement policies and
partitioners that training uses.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from tfps.plan import jobs
from tfps.plan import models
from tfps.variables import placement as placement_lib
from tfps.wire import division

_INDEX_BYTES = 8
_COUNT_BYTES = 8  # of a number of rows that is sent along


@dataclasses.dataclass(frozen=True)
class Shard:
  """A variable, or a shard of one.

  Attributes:
    index: unique number, in the order in which steps read the shards.
    ps: index of its ps.
    shape: its shape.
    rows: how many of its rows a step reads; None for all.
    variable: the variable that it belongs to.
  """

  index: int
  ps: int
  shape: tuple[int, ...]
  rows: float | None
  variable: models.Variable

  @property
  def num_values(self) -> float:
    """The number of values that a step reads."""
    width = 1
    for size in self.shape[1:]:
      width *= size
    rows = self.rows if self.rows is not None else (*self.shape, 1)[0]
    return rows * width

  @property
  def num_bytes(self) -> float:
    """The bytes that a step reads, before a codec."""
    return self.num_values * self.variable.value_bytes

  @property
  def whole_bytes(self) -> int:
    """The bytes of the whole shard."""
    return dataclasses.replace(
      self.variable, shape=self.shape, rows=None
    ).num_bytes


@dataclasses.dataclass(frozen=True)
class Message:
  """A tensor that is transferred by one call.

  Attributes:
    ps: index of the ps that sends or receives it.
    num_bytes: bytes transferred.
    value_bytes: bytes of its values, before a codec.
    coded_bytes: bytes of the values that a codec encodes, before encoding.
    shards: indices of its shards.
  """

  ps: int
  num_bytes: float
  value_bytes: float
  coded_bytes: float
  shards: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Messages:
  """The messages that a worker's step sends and receives.

  Attributes:
    dense: parameters that are read as a whole, from the ps.
    requests: indices of the rows to read, to the ps.
    rows: these rows, from the ps.
    pushes: gradients, to the ps.
    ps_bytes: bytes of the variables on each ps.
  """

  dense: tuple[Message, ...]
  requests: tuple[Message, ...]
  rows: tuple[Message, ...]
  pushes: tuple[Message, ...]
  ps_bytes: tuple[int, ...]

  @property
  def pulls(self) -> tuple[Message, ...]:
    """All messages that a step receives."""
    return (*self.rows, *self.dense)

  def pulled(self, ps: int) -> float:
    """Returns the bytes that a step receives from a ps."""
    return sum(m.num_bytes for m in self.pulls if m.ps == ps)

  def pushed(self, ps: int) -> float:
    """Returns the bytes that a step sends to a ps, requests included."""
    both = (*self.requests, *self.pushes)
    return sum(m.num_bytes for m in both if m.ps == ps)

  def requested(self, ps: int) -> float:
    """Returns the bytes of requests for rows that a step sends to a ps."""
    return sum(m.num_bytes for m in self.requests if m.ps == ps)


def of_sum(job: jobs.Job, number: int) -> Messages:
  """Returns the messages if several workers push the sum of their gradients.

  Workers are assumed to read different rows, as far as tables have enough.

  Args:
    job: the job.
    number: number of workers that push together.
  """
  variables = [
    variable
    if variable.rows is None
    else dataclasses.replace(
      variable, rows=min(number * variable.rows, variable.shape[0])
    )
    for variable in job.model.variables
  ]
  model = dataclasses.replace(job.model, variables=tuple(variables))
  # The rows of a sum are others than those that any worker has read.
  return of(dataclasses.replace(job, model=model), has_indices=number > 1)


def of(job: jobs.Job, *, has_indices: bool = False) -> Messages:
  """Returns the messages of a worker's step.

  Args:
    job: the job.
    has_indices: whether gradients are sent with the indices of their rows. A
      worker's own are not: the ps has got them with the requests.
  """
  shards = place(job)
  dense: list[Message] = []
  requests: list[Message] = []
  rows: list[Message] = []
  pushes: list[Message] = []
  held = [0] * job.num_ps
  for shard in shards:
    held[shard.ps] += shard.whole_bytes
  for ps in range(job.num_ps):
    here = [shard for shard in shards if shard.ps == ps]
    whole = [shard for shard in here if shard.rows is None]
    for group in division.divide(whole, lambda s: s.num_bytes):
      dense.append(_message(ps, group, job.pull))
    tables = [shard for shard in here if shard.rows is not None]
    if tables:
      requests.append(_request(ps, tables))
      rows.append(_message(ps, tables, job.pull))
    for group in division.divide(here, _gradient_bytes):
      beside = _beside_gradients(group, has_indices=has_indices)
      pushes.append(_message(ps, group, job.push, beside))
  return Messages(
    tuple(dense), tuple(requests), tuple(rows), tuple(pushes), tuple(held)
  )


def place(job: jobs.Job) -> list[Shard]:
  """Partitions and places variables one by one, as a strategy does.

  Args:
    job: the job.

  Returns:
    All shards, in the order of the variables.
  """
  policy = placement_lib.within(job.placement, job.cluster)
  loads = [placement_lib.Load()] * job.num_ps
  shards: list[Shard] = []
  for variable in job.model.variables:
    shapes = _shard_shapes(variable, job.partitioner)
    parts = [dataclasses.replace(variable, shape=s, rows=None) for s in shapes]
    sizes = [part.num_bytes * (1 + policy.num_slots) for part in parts]
    for shape, size, ps in zip(
      shapes, sizes, policy.assign(sizes, loads), strict=True
    ):
      loads[ps] = loads[ps].plus(size)
      rows = variable.rows
      if rows is not None:
        rows *= shape[0] / variable.shape[0]
      shards.append(Shard(len(shards), ps, shape, rows, variable))
  return shards


def _shard_shapes(
  variable: models.Variable, partitioner: Any
) -> list[tuple[int, ...]]:
  """Returns the shapes of a variable's shards."""
  if partitioner is None or not variable.shape:
    return [variable.shape]
  first, *rest = variable.shape
  number = min(partitioner(list(variable.shape), variable.dtype)[0], first)
  # TensorFlow adds the remaining rows to the first shards, one each.
  return [((first + i) // number, *rest) for i in reversed(range(number))]


def _gradient_bytes(shard: Shard) -> float:
  # The wire counts tensors of unknown size as 0 bytes.
  return 0 if shard.rows is not None else shard.num_bytes


def _request(ps: int, tables: Sequence[Shard]) -> Message:
  num_bytes = _INDEX_BYTES * sum(shard.rows or 0 for shard in tables)
  num_bytes += _count_bytes(len(tables))
  return Message(ps, num_bytes, 0, 0, frozenset(s.index for s in tables))


def _message(
  ps: int, shards: Sequence[Shard], codec: Any, num_bytes_beside: float = 0
) -> Message:
  coded = [shard for shard in shards if _is_coded(shard, codec)]
  plain = [shard for shard in shards if not _is_coded(shard, codec)]
  num_bytes = sum(shard.num_bytes for shard in plain)
  for dtype in sorted({shard.variable.dtype for shard in coded}):
    size = sum(s.num_values for s in coded if s.variable.dtype == dtype)
    num_bytes += codec.wire_bytes(round(size), dtype)
  return Message(
    ps,
    num_bytes + num_bytes_beside,
    sum(shard.num_bytes for shard in shards),
    sum(shard.num_bytes for shard in coded),
    frozenset(shard.index for shard in shards),
  )


def _beside_gradients(shards: Sequence[Shard], *, has_indices: bool) -> float:
  """Returns the bytes that say how many rows of each table follow and which."""
  rows = [shard.rows for shard in shards if shard.rows is not None]
  if not has_indices:
    return _count_bytes(len(rows))
  return _count_bytes(2 * len(rows)) + _INDEX_BYTES * sum(rows)


def _count_bytes(number: int) -> int:
  # A single number of rows follows from the length of the message.
  return _COUNT_BYTES * number if number > 1 else 0


def _is_coded(shard: Shard, codec: Any) -> bool:
  if codec is None or not shard.shape:
    return False
  return shard.rows is None or bool(codec.for_rows)
