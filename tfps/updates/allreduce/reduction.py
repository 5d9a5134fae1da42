"""Sums of tensors over a group of workers, in functions that are being traced.

The size and the key of the group are variables, so that a function that was
traced once works for every group of the same workers. All workers trace the
same sums in the same order within a step, and in a function outside of steps;
a worker that returns has not traced what others had before.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
from typing import Any
import zlib

import tensorflow as tf

from tfps._compat import graphs

# Gradients are sent in buckets of this size, each as soon as its last one is
# computed: large enough that a message's fixed cost does not matter.
_BUCKET_BYTES = 4 << 20

# As what types those are sent that TensorFlow does not add up on GPUs.
_WIDER = {tf.int32: tf.int64, tf.bfloat16: tf.float32}

# Key of what counts the sums of a graph that are in no step.
_OUTSIDE = 'sums outside of steps'


class Reduction:
  """Adds up tensors of all workers, ring by ring (Patarasuk and Yuan, 2009).

  Args:
    index: number of this worker.
    num_workers: number of workers of the cluster, of which a group may have
      fewer. A single one sends nothing.
    hint: TensorFlow's name of the algorithm, 'ring' or 'nccl'.
    device: device on which tensors are added up.
    bucket_bytes: number of bytes that are sent as one tensor; None for the
      default.

  Attributes:
    hint: as given.
    rank: place of this worker in the group, an int32 variable.
    size: number of workers of the group, likewise.
    key: number of the group, likewise.
    scale: by what the sums of a group are multiplied to be those of all
      workers, a float32 variable.
    is_change_due: whether this worker wants the group to end after an
      execution, a float32 variable of 0 or 1.
    is_change_agreed: whether any worker did, likewise.
    after: tensors that sums wait for.
    num_sums: number of sums that this step has traced so far.
  """

  def __init__(
    self,
    index: int,
    num_workers: int,
    *,
    hint: str = 'ring',
    device: str = '/device:CPU:0',
    bucket_bytes: int | None = None,
  ) -> None:
    self.num_workers = num_workers
    self.after: list[tf.Tensor] = []
    self.num_sums = 0
    self._is_in_step = False
    self.hint = hint
    self._device = device
    self._bucket_bytes = bucket_bytes or _BUCKET_BYTES
    with tf.init_scope(), tf.device('/device:CPU:0'):
      self.rank = tf.Variable(index, dtype=tf.int32, trainable=False)
      self.size = tf.Variable(num_workers, dtype=tf.int32, trainable=False)
      self.scale = tf.Variable(1.0, trainable=False)
      self.key = tf.Variable(0, dtype=tf.int32, trainable=False)
      self.is_change_due = tf.Variable(0.0, trainable=False)
      self.is_change_agreed = tf.Variable(0.0, trainable=False)

  def enter_group(self, rank: int, size: int, key: int) -> None:
    """Makes later sums those of another group.

    Args:
      rank: place of this worker in the group.
      size: number of its workers.
      key: number of the group, which no earlier one had.
    """
    self.rank.assign(rank)
    self.size.assign(size)
    self.key.assign(key)
    self.scale.assign(self.num_workers / size)
    self.is_change_due.assign(0.0)
    self.is_change_agreed.assign(0.0)

  @contextlib.contextmanager
  def step(self, after: Sequence[tf.Tensor]) -> Iterator[None]:
    """Returns a context in which the sums of one step are traced.

    Args:
      after: tensors of the function that the sums wait for.
    """
    before = self.after, self.num_sums, self._is_in_step
    self.after, self.num_sums, self._is_in_step = list(after), 0, True
    try:
      yield
    finally:
      self.after, self.num_sums, self._is_in_step = before

  def sum_all(
    self, tensors: Sequence[Any], factor: Any, to_average: Sequence[Any] = ()
  ) -> list[Any]:
    """Returns sums of tensors and rows, and then the means of others.

    Either all of them arrive, or none does.

    Args:
      tensors: tensors, and `tf.IndexedSlices` whose rows are put together.
      factor: scalar by which they are multiplied; None for 1.
      to_average: tensors to average over the workers of the group.
    """
    if self.num_workers == 1:
      self.num_sums += 1  # of one worker
      return [*tensors, *to_average]
    found = list(tensors)
    rows = [i for i, t in enumerate(found) if isinstance(t, tf.IndexedSlices)]
    dense = [i for i in range(len(found)) if i not in rows]
    factors = [factor] * len(dense)
    if to_average:
      factors += [self.scale / self.num_workers] * len(to_average)
    gathered = self.gather([_scaled(found[i], factor) for i in rows])
    sums = self.sum(
      [*(found[i] for i in dense), *to_average] or [tf.zeros([])], factors
    )
    with tf.control_dependencies(sums):
      for i, each in zip(rows, gathered, strict=True):
        found[i] = _scaled(each, None)
    with tf.control_dependencies([each.values for each in gathered]):
      for i, total in zip(dense, sums[: len(dense)], strict=False):
        found[i] = tf.identity(total)
    return [*found, *sums[len(dense) :][: len(to_average)]]

  def sum(
    self, tensors: Sequence[tf.Tensor], factors: Sequence[Any] = ()
  ) -> list[tf.Tensor]:
    """Returns the sums of tensors over all workers, once all are there.

    Args:
      tensors: numbers, each of the same shape and type on all workers.
      factors: scalars by which this worker's tensors are multiplied before, if
        they are floats; by default 1.

    Returns:
      The sums, in the order and shapes of the tensors.
    """
    found = [tf.convert_to_tensor(tensor) for tensor in tensors]
    factors = factors or [None] * len(found)
    if self.num_workers == 1 or not found:
      return list(map(_times, factors, found))
    sums: list[tf.Tensor] = []
    with tf.control_dependencies(self.after):
      for indices in self._buckets(found):
        vector = self._packed(indices, found, factors)
        if not sums:
          flag = tf.cast(self.is_change_due.read_value(), vector.dtype)
          vector = tf.concat([vector, [flag]], axis=0)
        total = self._all_reduce(vector)
        if not sums:
          self._note_change(total[-1])
          total = total[:-1]
        sums.append(total)
        sizes = [tf.size(found[i]) for i in indices]
        for i, part in zip(indices, tf.split(total, sizes), strict=True):
          found[i] = _reshaped(part, found[i])
    with tf.control_dependencies(sums):
      return [tf.identity(tensor) for tensor in found]

  def gather(
    self, slices: Sequence[tf.IndexedSlices]
  ) -> list[tf.IndexedSlices]:
    """Returns the rows of all workers, in the order of the workers.

    Args:
      slices: rows of several tables; each worker may have other numbers of
        rows.

    Returns:
      The same tables' rows, of which some may be of the same index.
    """
    if self.num_workers == 1 or not slices:
      return list(slices)
    found = list(slices)
    with tf.control_dependencies(self.after):
      sizes = self._all_gather(
        [tf.stack([tf.size(each.indices) for each in slices])]
      )
      for group in _groups(slices):
        own = tf.gather(sizes, group, axis=1)
        indices = self._gather_padded([slices[i].indices for i in group], own)
        values = self._gather_padded([slices[i].values for i in group], own)
        for i, rows, numbers in zip(group, values, indices, strict=True):
          rows.set_shape([None, *slices[i].values.shape[1:]])
          found[i] = tf.IndexedSlices(rows, numbers, slices[i].dense_shape)
    return found

  def _gather_padded(
    self, parts: Sequence[tf.Tensor], sizes: tf.Tensor
  ) -> list[tf.Tensor]:
    """Returns the rows of all workers for each of some tensors.

    Args:
      parts: rows of this worker, of the same type and width.
      sizes: number of rows of each worker for each of these, [workers, parts].
    """
    totals = tf.reduce_sum(sizes, axis=1)
    most = tf.reduce_max(totals)
    own = tf.concat(parts, axis=0)
    rank = own.shape.rank
    padding = tf.one_hot(1, 2, most - tf.shape(own)[0], dtype=tf.int32)
    paddings = tf.pad([padding], [[0, rank - 1], [0, 0]])
    rows = self._all_gather([tf.pad(own, paddings)], most)
    ends = tf.cumsum(sizes, axis=1)
    found = []
    for i in range(len(parts)):
      before = tf.sequence_mask(ends[:, i] - sizes[:, i], most)
      is_used = tf.sequence_mask(ends[:, i], most) & ~before
      found.append(tf.boolean_mask(rows, is_used))
    return found

  def _packed(
    self,
    indices: Sequence[int],
    tensors: Sequence[tf.Tensor],
    factors: Sequence[Any],
  ) -> tf.Tensor:
    """Returns some tensors as one vector, multiplied by their factors."""
    own = [factors[i] for i in indices]
    is_common = all(factor is own[0] for factor in own)
    parts = [
      tf.reshape(
        tensors[i] if is_common else _times(factors[i], tensors[i]), [-1]
      )
      for i in indices
    ]
    vector = tf.concat(parts, axis=0) if len(parts) > 1 else parts[0]
    return _times(own[0], vector) if is_common else vector

  def _note_change(self, number: tf.Tensor) -> None:
    agreed = tf.cast(number, tf.float32)
    self.is_change_agreed.assign(tf.maximum(self.is_change_agreed, agreed))

  def _buckets(self, tensors: Sequence[tf.Tensor]) -> Iterator[list[int]]:
    """Yields the indices of tensors to send as one, the last ones first.

    Gradients of a model's last layers are computed first.
    """
    bucket: list[int] = []
    num_bytes = 0
    order = sorted(
      range(len(tensors)), key=lambda i: (tensors[i].dtype.name, -i)
    )
    for i in order:
      own = _num_bytes(tensors[i])
      is_other = bucket and tensors[bucket[0]].dtype != tensors[i].dtype
      if bucket and (is_other or num_bytes + own > self._bucket_bytes):
        yield bucket
        bucket, num_bytes = [], 0
      bucket.append(i)
      num_bytes += own
    if bucket:
      yield bucket

  def _all_reduce(self, given: tf.Tensor) -> tf.Tensor:
    size = given.shape.num_elements() or tf.size(given)
    key = self._instance_key(given.dtype, 'sum')
    vector = self._widened(given)
    with tf.device(self._device):
      total = tf.raw_ops.CollectiveReduceV2(
        input=vector,
        group_size=self.size,
        group_key=self.key,
        instance_key=tf.bitwise.bitwise_xor(key, size),
        ordering_token=[],
        merge_op='Add',
        final_op='Id',
        communication_hint=self.hint,
      )
    total.set_shape(given.shape)
    return tf.cast(total, given.dtype)

  def _all_gather(self, own: Any, length: Any = 0) -> tf.Tensor:
    """Returns the tensors of all workers, [workers, ...].

    Args:
      own: tensor of this worker, with a first dimension of 1.
      length: its second dimension, if that differs among executions.
    """
    given = tf.convert_to_tensor(own)
    key = self._instance_key(given.dtype, 'gather')
    vector = self._widened(given)
    with tf.device(self._device):
      found = tf.raw_ops.CollectiveGatherV2(
        input=vector,
        group_size=self.size,
        group_key=self.key,
        instance_key=tf.bitwise.bitwise_xor(key, length),
        ordering_token=[],
        communication_hint=self.hint,
      )
    return tf.cast(found, given.dtype)

  def _widened(self, tensor: tf.Tensor) -> tf.Tensor:
    if self.hint != 'nccl':
      return tensor
    return tf.cast(tensor, _WIDER.get(tensor.dtype, tensor.dtype))

  def _instance_key(self, *facts: Any) -> int:
    """Returns a number that all workers give the same collective of a step.

    TensorFlow requires the same type and shape of all that have the same
    number in a group.

    Args:
      *facts: what else distinguishes the collective.
    """
    self.num_sums += 1
    number = self.num_sums
    if not self._is_in_step:
      number = -next(graphs.once(_OUTSIDE, lambda: itertools.count(1)))
    return _hash(number, *facts)


def _hash(*facts: Any) -> int:
  return zlib.crc32(repr(facts).encode()) & 0x7FFFFFFF


def _groups(slices: Sequence[tf.IndexedSlices]) -> list[list[int]]:
  """Returns the indices of rows that can be sent as one tensor."""
  found: dict[Any, list[int]] = {}
  for i, each in enumerate(slices):
    kind = each.indices.dtype, each.values.dtype, *each.values.shape[1:]
    found.setdefault(kind, []).append(i)
  return list(found.values())


def _scaled(rows: tf.IndexedSlices, factor: Any) -> tf.IndexedSlices:
  """Returns rows whose values are multiplied by a scalar, unless it is None."""
  values = tf.identity(_times(factor, rows.values))
  return tf.IndexedSlices(values, rows.indices, rows.dense_shape)


def _times(factor: Any, tensor: tf.Tensor) -> tf.Tensor:
  if factor is None or not tensor.dtype.is_floating:
    return tensor
  return tensor * tf.cast(factor, tensor.dtype)


def _reshaped(part: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  found = tf.reshape(part, tf.shape(like))
  found.set_shape(like.shape)
  return found


def _num_bytes(tensor: tf.Tensor) -> int:
  number = tensor.shape.num_elements() or 0
  return int(number * tensor.dtype.size)
