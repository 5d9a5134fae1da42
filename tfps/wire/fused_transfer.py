"""Tensors that cross between worker and ps, those of a group as one.

While a step is being traced it is not known yet what it will read. So each read
gets a promise, which is a tensor like any other, and once the step has been
traced the promises of a group are settled: what they stand for is packed,
crosses, and is unpacked behind them.
"""

import collections
from collections.abc import Hashable
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import reads as compat
from tfps.wire import chunking
from tfps.wire import encoding
from tfps.wire import packing
from tfps.wire import traffic as traffic_lib
from tfps.wire import workspace as workspace_lib

PULL, PUSH = traffic_lib.PULL, traffic_lib.PUSH

# What takes the network less than a call does, at 1 Gbit/s.
_FEW_BYTES = 1 << 15

# What has these before it may have to wait for an update that waits for a
# crossing.
_STATEFUL_READS = {'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd'}


@dataclasses.dataclass(frozen=True)
class Route:
  """Between a ps and a worker.

  Attributes:
    direction: PULL from the ps, or PUSH to it.
    device: of the ps.
    ps: its index.
    worker: a device of the worker; empty for the device scope that there is,
      which is the task where a function is called.
  """

  direction: int
  device: str
  ps: int
  worker: str = ''

  @property
  def source(self) -> Any:
    """The device scope for what is packed."""
    return self._at(is_ps=self.direction == PULL)

  @property
  def destination(self) -> Any:
    """The device scope for what is unpacked."""
    return self._at(is_ps=self.direction == PUSH)

  def _at(self, *, is_ps: bool) -> Any:
    if is_ps:
      return tf.device(self.device)
    return tf.device(self.worker) if self.worker else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class Item:
  """A tensor that is to cross.

  Attributes:
    tensor: where it comes from.
    codec: encodes it, if any.
    name: of the tensor, for what the codec leaves to be sent later.
  """

  tensor: tf.Tensor
  codec: Any = None
  name: str = ''


def cross(
  items: Sequence[Item],
  route: Route,
  workspace: workspace_lib.Workspace | None,
) -> list[tf.Tensor]:
  """Has tensors cross as one; returns them at the other end.

  Args:
    items: the tensors.
    route: to take.
    workspace: of the function, which codecs need.
  """
  plain = [i for i, item in enumerate(items) if item.codec is None]
  coded = collections.defaultdict(list)
  for i, item in enumerate(items):
    if item.codec is not None:
      coded[item.codec, item.tensor.dtype].append(i)
  codings = [
    encoding.Encoding(
      codec,
      [items[i].tensor for i in indices],
      '/'.join(items[i].name for i in indices),
    )
    for (codec, _), indices in coded.items()
  ]
  with route.source:
    pieces = [[items[i].tensor for i in plain]]
    pieces += [each.encode(workspace) for each in codings]
    parts = [tensor for piece in pieces for tensor in piece]
    frame = packing.Packing(parts)
    packed = frame.pack(parts)
  with route.destination:
    crossed = tf.identity(packed)
    parts = frame.unpack(crossed)
    arrived = dict(zip(plain, parts, strict=False))
    first = len(plain)
    for each, indices, piece in zip(
      codings, coded.values(), pieces[1:], strict=True
    ):
      decoded = each.decode(parts[first : first + len(piece)])
      arrived.update(zip(indices, decoded, strict=True))
      first += len(piece)
  if workspace is not None and workspace.accounts is not None:
    here = crossed if route.direction == PULL else packed
    num_bytes = frame.num_bytes
    if num_bytes is None:
      num_bytes = tf.size(here, tf.int64) * here.dtype.size
    workspace.accounts.add(route.direction, route.ps, num_bytes)
  return [arrived[i] for i in range(len(items))]


class _Call(NamedTuple):
  """What has all of these in common crosses together.

  Attributes:
    route: to take.
    group: of the one who promises.
    level: the number of crossings before it; None if that is not clear.
  """

  route: Route
  group: Hashable
  level: int | None


class FusedTransfers:
  """What crosses in one function.

  Args:
    workspace: of that function.
  """

  def __init__(self, workspace: workspace_lib.Workspace) -> None:
    self._workspace = workspace
    self._promised: dict[_Call, list[tuple[Item, tf.Tensor]]] = (
      collections.defaultdict(list)
    )
    self._levels: dict[str, int] = {}
    self._num_alone = 0
    self._nothings: dict[Any, tf.Tensor] = {}

  def promise(
    self, item: Item, route: Route, group: Hashable, level: int | None = 0
  ) -> tf.Tensor:
    """A tensor that will have the item's value, at the route's other end.

    Args:
      item: to cross.
      route: to take.
      group: what has the same route, group and level crosses together.
      level: the number of crossings, one after another, before this one; None
        has it cross alone.
    """
    if level is None:
      self._num_alone += 1
      group = (group, self._num_alone)
    with route.destination:
      tensor = tf.identity(self._nothing(item.tensor))
    self._promised[_Call(route, group, level)].append((item, tensor))
    self._levels[tensor.op.name] = 0 if level is None else level + 1
    return tensor

  def level(self, tensor: tf.Tensor) -> int | None:
    """After how many crossings a tensor is known; None if that is not clear."""
    highest = 0
    for operation in compat.sources(tensor, self._levels):
      if operation.type in _STATEFUL_READS:
        return None
      highest = max(highest, self._levels.get(operation.name, 0))
    return highest

  def settle(self) -> None:
    """Makes all promises good."""
    self._join_calls()
    chunks = [
      (call.route, chunk)
      for call, promised in self._promised.items()
      for chunk in chunking.divide(promised, lambda each: each[1])
    ]
    self._promised.clear()
    with tf.control_dependencies(None):
      for route, promised in chunks:
        items = [item for item, _ in promised]
        arrived = cross(items, route, self._workspace)
        for (_, tensor), source in zip(promised, arrived, strict=True):
          self._levels[source.op.name] = self._levels[tensor.op.name]
          compat.rewire(tensor, source)

  def _join_calls(self) -> None:
    """Has few bytes wait for what comes by the same route after one crossing.

    That crossing depends on no other, so it cannot be waiting for them. What
    comes still later may.
    """
    later = {
      call.route: call
      for call in self._promised
      if call.level == 1 and call.route.direction == PULL
    }
    for call in [call for call in self._promised if call.level == 0]:
      host = later.get(call.route)
      if host is not None and _are_few_bytes(self._promised[call]):
        self._promised[host].extend(self._promised.pop(call))

  def _nothing(self, like: tf.Tensor) -> tf.Tensor:
    """Something of the same static shape, to be replaced."""
    shape = like.shape.as_list()
    key = like.dtype, tuple(shape)
    if key not in self._nothings:
      nothing = tf.raw_ops.Empty(
        shape=[n or 0 for n in shape], dtype=like.dtype
      )
      if None in shape:
        nothing = tf.raw_ops.PlaceholderWithDefault(input=nothing, shape=shape)
      self._nothings[key] = nothing
    return self._nothings[key]


def _are_few_bytes(promised: Sequence[tuple[Item, tf.Tensor]]) -> bool:
  sizes = [chunking.num_bytes(tensor) for _, tensor in promised]
  known = [size for size in sizes if size is not None]
  return len(known) == len(sizes) and sum(known) <= _FEW_BYTES
