"""Fused transfers: the tensors of a group travel as one.

While a step is traced, it is unknown what else it will read. So each read
returns a placeholder tensor, the promise. Once the step is traced, promises are
settled: the tensors of a group are packed, transferred and unpacked, and the
placeholders' consumers are rewired to the results.
"""

import collections
from collections.abc import Hashable
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import graphs
from tfps.wire import chunking
from tfps.wire import encoding
from tfps.wire import packing
from tfps.wire import traffic as traffic_lib

PULL, PUSH = traffic_lib.PULL, traffic_lib.PUSH

# At 1 Gbit/s, so many bytes take less time than a call.
_FEW_BYTES = 1 << 15

# Ops that may wait for an update which itself waits for a transfer.
_STATEFUL_READS = {'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd'}


@dataclasses.dataclass(frozen=True)
class Route:
  """The direction and the two ends of a transfer.

  Attributes:
    direction: PULL from the ps, or PUSH to it.
    device: the device of the ps.
    ps: the index of the ps.
    worker: a device of the worker; empty for the current device scope, which
      is the task that executes the function.
  """

  direction: int
  device: str
  ps: int
  worker: str = ''

  @property
  def source(self) -> Any:
    """The device scope of the sender."""
    return self._at(is_ps=self.direction == PULL)

  @property
  def destination(self) -> Any:
    """The device scope of the receiver."""
    return self._at(is_ps=self.direction == PUSH)

  def _at(self, *, is_ps: bool) -> Any:
    if is_ps:
      return tf.device(self.device)
    return tf.device(self.worker) if self.worker else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class Item:
  """A tensor to transfer.

  Attributes:
    tensor: the tensor, at the sender.
    codec: the codec that encodes it; None for none.
    name: name of the tensor, which is the key of the codec's residual.
    num_rows: how many rows it has, an int64 scalar at the receiver; None if the
      receiver does not know.
  """

  tensor: tf.Tensor
  codec: Any = None
  name: str = ''
  num_rows: tf.Tensor | None = None


def transfer(
  items: Sequence[Item],
  route: Route,
  workspace: traffic_lib.Workspace | None,
) -> list[tf.Tensor]:
  """Transfers tensors as one; returns them at the other end.

  Args:
    items: the tensors.
    route: between which ends, in which direction.
    workspace: counts bytes and keeps residuals; see `traffic.Workspace`.

  Returns:
    The tensors on the receiver, in the order of the items.
  """
  plain = [i for i, item in enumerate(items) if item.codec is None]
  coded = collections.defaultdict(list)
  for i, item in enumerate(items):
    if item.codec is not None:
      coded[item.codec, item.tensor.dtype].append(i)
  encodings = [
    encoding.Encoding(
      codec,
      [items[i].tensor for i in indices],
      '/'.join(items[i].name for i in indices),
    )
    for (codec, _), indices in coded.items()
  ]
  with route.source:
    pieces = [[items[i].tensor for i in plain]]
    pieces += [each.encode(workspace) for each in encodings]
    parts = [tensor for piece in pieces for tensor in piece]
    told = {
      k: number
      for k, i in enumerate(plain)
      if (number := items[i].num_rows) is not None
    }
    layout = packing.Packing(parts, told)
    packed = layout.pack(parts)
  with route.destination:
    received = tf.identity(packed)
    parts = layout.unpack(received)
    arrived = dict(zip(plain, parts, strict=False))
    first = len(plain)
    for each, indices, piece in zip(
      encodings, coded.values(), pieces[1:], strict=True
    ):
      decoded = each.decode(parts[first : first + len(piece)])
      arrived.update(zip(indices, decoded, strict=True))
      first += len(piece)
  if workspace is not None and workspace.traffic is not None:
    on_worker = received if route.direction == PULL else packed
    num_bytes = layout.num_bytes
    if num_bytes is None:
      num_bytes = tf.size(on_worker, tf.int64) * on_worker.dtype.size
    workspace.traffic.add(route.direction, route.ps, num_bytes)
  return [arrived[i] for i in range(len(items))]


class _Call(NamedTuple):
  """The key of promises that are transferred together.

  Attributes:
    route: between which ends, in which direction.
    group: the caller's group.
    level: how many transfers must precede this one; None if unknown.
  """

  route: Route
  group: Hashable
  level: int | None


class FusedTransfers:
  """Collects the transfers of one function and fuses them.

  Args:
    workspace: the function's.
  """

  def __init__(self, workspace: traffic_lib.Workspace) -> None:
    self._workspace = workspace
    self._promised: dict[_Call, list[tuple[Item, tf.Tensor]]] = (
      collections.defaultdict(list)
    )
    self._aside: list[tuple[Route, tuple[Item, tf.Tensor]]] = []
    self._levels: dict[str, int] = {}
    # By its id, a tensor of the worker, which keeps the id, and that on the ps.
    self._sources: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
    self._num_unfused = 0
    self._placeholders: dict[Any, tf.Tensor] = {}

  def promise(
    self,
    item: Item,
    route: Route,
    group: Hashable,
    level: int | None = 0,
    *,
    may_stay: bool = False,
  ) -> tf.Tensor:
    """Returns a tensor that will have the item's value at the receiver.

    Args:
      item: the tensor to transfer.
      route: between which ends, in which direction.
      group: items of the same route, group and level are transferred together.
      level: the number of consecutive transfers that precede this one; None
        transfers the item alone.
      may_stay: whether the item is not transferred if nothing uses it at the
        receiver. What is sent back takes it where it was; see `source`.
    """
    if level is None:
      self._num_unfused += 1
      group = (group, self._num_unfused)
    with route.destination:
      tensor = tf.identity(self._placeholder(item.tensor.dtype, route))
      tensor.set_shape(item.tensor.shape)
    self._promised[_Call(route, group, level)].append((item, tensor))
    if may_stay:
      self.note_source(tensor, item.tensor)
    self._levels[tensor.op.name] = 0 if level is None else level + 1
    return tensor

  def note_source(self, tensor: tf.Tensor, on_ps: tf.Tensor) -> None:
    """Notes what a tensor of the worker is on a ps, so that it is sent once."""
    self._sources[id(tensor)] = tensor, on_ps

  def source(self, tensor: Any, device: str) -> tf.Tensor | None:
    """Returns what a tensor of the worker is on a device, or None."""
    _, source = self._sources.get(id(tensor), (None, None))
    return source if source is not None and source.device == device else None

  def set_aside(self, tensor: tf.Tensor) -> None:
    """Sets a promised tensor aside, to be transferred by `settle_alone`.

    If nothing uses the tensor, it is not transferred.

    Args:
      tensor: as returned by `promise`; without effect if it was settled.
    """
    for call, promised in self._promised.items():
      for i, (_, own) in enumerate(promised):
        if own is tensor:
          self._aside.append((call.route, promised.pop(i)))
          return

  def settle_alone(self) -> None:
    """Builds the transfers of tensors that were set aside."""
    with tf.control_dependencies(None):
      for route, (item, tensor) in self._aside:
        # TensorFlow prunes what has no consumer, which counts no bytes then.
        workspace = self._workspace
        if not graphs.is_used(tensor):
          workspace = dataclasses.replace(workspace, traffic=None)
        (source,) = transfer([item], route, workspace)
        graphs.rewire(tensor, source)
    self._aside.clear()

  def level(self, tensor: tf.Tensor) -> int | None:
    """Returns how many transfers a tensor depends on; None if unknown.

    Args:
      tensor: a tensor of the function.
    """
    highest = 0
    for operation in graphs.sources(tensor, self._levels):
      if operation.type in _STATEFUL_READS:
        return None
      highest = max(highest, self._levels.get(operation.name, 0))
    return highest

  def settle(self) -> None:
    """Builds the transfers of all promises, and rewires their consumers."""
    self._leave_out_unused()
    self._join_calls()
    chunks = [
      (call.route, chunk)
      for call, promised in self._promised.items()
      if promised
      for chunk in chunking.divide(promised, lambda each: each[1])
    ]
    self._promised.clear()
    with tf.control_dependencies(None):
      for route, promised in chunks:
        items = [item for item, _ in promised]
        arrived = transfer(items, route, self._workspace)
        for (_, tensor), source in zip(promised, arrived, strict=True):
          self._levels[source.op.name] = self._levels[tensor.op.name]
          graphs.rewire(tensor, source)

  def _leave_out_unused(self) -> None:
    """Forgets promises that may stay and that nothing uses."""
    for promised in self._promised.values():
      promised[:] = [
        (item, tensor)
        for item, tensor in promised
        if id(tensor) not in self._sources or graphs.is_used(tensor)
      ]

  def _join_calls(self) -> None:
    """Merges small pulls of level 0 into those of level 1 on the same route.

    The transfer that level 1 waits for depends on no other, so that it cannot
    wait for the merged tensors. Transfers of higher levels may.
    """
    later = {
      call.route: call
      for call in self._promised
      if call.level == 1 and call.route.direction == PULL
    }
    for call in [call for call in self._promised if call.level == 0]:
      target = later.get(call.route)
      if target is not None and _are_few_bytes(self._promised[call]):
        self._promised[target].extend(self._promised.pop(call))

  def _placeholder(self, dtype: tf.DType, route: Route) -> tf.Tensor:
    """Returns a tensor of any shape at the receiver.

    Its operation has no state: TensorFlow would order those that have, also on
    different devices, by messages. It can be executed, as loops execute what
    nothing uses if a program has TensorFlow optimize no graphs.
    """
    key = route.device if route.direction == PUSH else route.worker, dtype
    if key not in self._placeholders:
      self._placeholders[key] = tf.raw_ops.PlaceholderWithDefault(
        input=tf.zeros([0], dtype), shape=None
      )
    return self._placeholders[key]


def _are_few_bytes(promised: Sequence[tuple[Item, tf.Tensor]]) -> bool:
  sizes = [chunking.num_bytes(tensor) for _, tensor in promised]
  known = [size for size in sizes if size is not None]
  return len(known) == len(sizes) and sum(known) <= _FEW_BYTES
