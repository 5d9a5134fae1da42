"""Replicas of a step: their devices, batches, weights and results.

A step may run on several devices at once: on those of one worker, or with
in-graph replication on those of all workers. Each replica has its own batch.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import replicas as compat
from tfps.cluster import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Replicas:
  """The replicas of a strategy's steps.

  Attributes:
    devices: the device of each replica, worker by worker. A device without a
      task is on the worker that executes the step.
    per_worker: number of replicas per worker. Their gradients are summed, so
      that a step has to divide its loss by this number, as Keras does; over
      workers gradients are averaged.
  """

  devices: tuple[str, ...] = ('/device:CPU:0',)
  per_worker: int = 1

  @property
  def are_several(self) -> bool:
    """True if a step has more than one replica."""
    return len(self.devices) > 1

  @property
  def span_workers(self) -> bool:
    """True if the replicas of a step are on several workers."""
    return len(self.devices) > self.per_worker

  @property
  def sizes(self) -> tuple[int, ...]:
    """The numbers of replicas of steps for which batches may run out.

    All, half of them, and so on, so that few graphs are needed.
    """
    number = len(self.devices)
    return tuple(number >> i for i in range(number.bit_length()))

  def group(self, batches: Any) -> 'Group':
    """Returns the replicas that take part in a step.

    Args:
      batches: the batches of the first replicas; None if all take part.
    """
    if batches is None:
      number, sizes = len(self.devices), None
    else:
      number = len(batches.values)
      sizes = getattr(batches, 'sizes', None)
    return Group(
      self.devices[:number],
      self.per_worker,
      None if sizes is None else tuple(sizes),
    )


@dataclasses.dataclass(frozen=True)
class Group:
  """The replicas of the step that is being traced.

  Attributes:
    devices: the device of each replica.
    per_worker: see `Replicas`.
    sizes: number of examples of each; None to weight all equally.
  """

  devices: tuple[str, ...]
  per_worker: int
  sizes: tuple[Any, ...] | None

  def weights(self) -> list[Any]:
    """Returns the weights of the replicas' gradients in their sum."""
    number = len(self.devices)
    if self.sizes is None or _are_equal(self.sizes):
      return [self.per_worker / number] * number
    total = tf.cast(
      tf.add_n([tf.convert_to_tensor(s) for s in self.sizes]), 'float64'
    )
    return [self.per_worker * tf.cast(s, 'float64') / total for s in self.sizes]


def find(names: Iterable[str], *, span_workers: bool) -> Replicas:
  """Returns a replica per GPU of a worker, or per CPU if it has no GPU.

  Args:
    names: names of all logical devices in a cluster.
    span_workers: whether a step runs on the devices of all workers.

  Raises:
    ValueError: workers have different numbers of devices.
  """
  by_worker: dict[int, list[Any]] = collections.defaultdict(list)
  for spec in map(tf.DeviceSpec.from_string, names):
    if spec.job == 'worker':
      by_worker[spec.task].append(spec)
  own = {task: _computing(specs) for task, specs in sorted(by_worker.items())}
  numbers = {task: len(specs) for task, specs in own.items()}
  if len(set(numbers.values())) > 1:
    listed = ', '.join(f'worker:{t} has {n}' for t, n in numbers.items())
    raise ValueError(
      f'Workers have different numbers of devices: {listed}. Give all the '
      'same, for example with CUDA_VISIBLE_DEVICES.'
    )
  if not own:
    return Replicas()
  per_worker = next(iter(numbers.values()))
  if span_workers:
    specs = [spec for each in own.values() for spec in each]
    return Replicas(tuple(spec.to_string() for spec in specs), per_worker)
  kinds = {spec.device_type for specs in own.values() for spec in specs}
  kind = max(kinds)  # the GPU, where only some workers have one
  return Replicas(
    tuple(f'/device:{kind}:{i}' for i in range(per_worker)), per_worker
  )


def of_task(
  names: Iterable[str], task: spec_lib.Task, most: int | None = None
) -> Replicas:
  """Returns a replica per GPU of one task, or per CPU if it has no GPU.

  Args:
    names: names of all logical devices in a cluster.
    task: the task that executes the steps.
    most: number of devices that are used; None for all.
  """
  specs = [
    spec
    for spec in map(tf.DeviceSpec.from_string, names)
    if (spec.job, spec.task) == (task.job, task.index)
  ]
  devices = tuple(
    f'/device:{spec.device_type}:{spec.device_index}'
    for spec in _computing(specs)[:most]
  )
  return Replicas(devices, len(devices)) if devices else Replicas()


def _computing(specs: Sequence[Any]) -> list[Any]:
  """Returns a worker's GPUs, or else its CPUs, by device index."""
  gpus = [spec for spec in specs if spec.device_type == 'GPU']
  cpus = [spec for spec in specs if spec.device_type == 'CPU']
  return sorted(gpus or cpus, key=lambda spec: spec.device_index)


def of(strategy: Any) -> Replicas:
  """Returns a strategy's replicas; a single one for TensorFlow's own."""
  found = getattr(strategy.extended, 'replicas', None)
  return found if isinstance(found, Replicas) else Replicas()


def is_replica_traced(strategy: Any) -> bool:
  """Returns whether one of several replicas of a step is being traced."""
  if not of(strategy).are_several or strategy.extended.group is None:
    return False
  context = tf.distribute.get_replica_context()
  return context is not None and context.strategy is strategy


@contextlib.contextmanager
def as_single_replica(strategy: Any) -> Iterator[None]:
  """Returns a context manager that presents all replicas as a single one.

  It is for code that runs once for a step, after the replicas synchronized.
  """
  extended = strategy.extended
  group, extended.group = extended.group, None
  try:
    with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0):
      yield
  finally:
    extended.group = group


def worker_device() -> str:
  """Returns the device of the replica that is being traced, if it has a task.

  The result is empty if the replica is on the worker that executes the step.
  The device scope cannot be used, as variables are read outside of it.
  """
  context = tf.distribute.get_replica_context()
  if context is None or not of(context.strategy).span_workers:
    return ''
  group: Group | None = context.strategy.extended.group
  return group.devices[compat.current()] if group else ''


def next_batch(strategy: Any, batches: Any, number: int | None = None) -> Any:
  """Returns the next batch of a step, or the next one of each replica.

  Args:
    strategy: the strategy that runs the step.
    batches: an iterator, or one for each worker.
    number: number of replicas that take part; by default all.
  """
  replicas = of(strategy)
  iterators = batches if isinstance(batches, list | tuple) else [batches]
  if not replicas.are_several:
    return next(iterators[0])
  drawn = []
  for i, device in enumerate(replicas.devices[:number]):
    with tf.device(_cpu_of(device)):
      drawn.append(next(iterators[i // replicas.per_worker]))
  return compat.Batches(drawn)


def join_batches(strategy: Any, batches: Sequence[Any]) -> Any:
  """Returns the only batch, or batches of a step's first replicas as one.

  Args:
    strategy: the strategy that runs the step.
    batches: a batch for each replica that takes part.
  """
  return compat.Batches(batches) if of(strategy).are_several else batches[0]


def num_examples(batch: Any) -> tf.Tensor:
  """Returns the number of examples of a step's batch, over its replicas.

  It is the length of the first tensor; one for a scalar.

  Args:
    batch: the result of `next_batch`.
  """
  pieces = batch.values if isinstance(batch, compat.Batches) else [batch]
  return tf.add_n([_length(tf.nest.flatten(piece)) for piece in pieces])


def _length(tensors: Sequence[Any]) -> tf.Tensor:
  if not tensors:
    return tf.constant(0, tf.int64)
  first = tensors[0]
  if isinstance(first, tf.RaggedTensor):
    return tf.cast(first.nrows(), tf.int64)
  if isinstance(first, tf.SparseTensor):
    return first.dense_shape[0]
  if first.shape.rank and first.shape[0] is not None:  # needs no operation
    return tf.constant(first.shape[0], tf.int64)
  # A scalar has no dimension, and an unknown number of them may be none.
  return tf.reduce_prod(tf.shape(first, tf.int64)[:1])


class Weighted(NamedTuple):
  """A worker's part of a batch for all workers.

  Attributes:
    batch: the part.
    weight: the part's size by the mean size of a part, a float32 scalar.
    counts: 1 if this worker counts its metrics, or 0, likewise.
  """

  batch: Any
  weight: tf.Tensor
  counts: tf.Tensor


def weighted(batch: Any, weight: float, counts: float = 1.0) -> Weighted:
  """Returns a part with its weight."""
  return Weighted(
    batch, tf.constant(weight, tf.float32), tf.constant(counts, tf.float32)
  )


def weight_batches(strategy: Any, batches: Any) -> Any:
  """Returns a batch, or the pieces of each replica weighted by their sizes.

  Args:
    strategy: the strategy that runs the step.
    batches: a batch, or a worker's part of one, or with several replicas the
      replicas' pieces of it.
  """
  if isinstance(batches, Weighted):
    strategy.extended.note_part(batches)
    return batches.batch
  if not of(strategy).are_several:
    return batches
  return compat.Batches(batches, [_num_examples(batch) for batch in batches])


def merge_scalars(strategy: Any, value: Any) -> Any:
  """Returns one scalar for those of all replicas of a step.

  Args:
    strategy: the strategy that ran the step.
    value: the replicas' scalars.

  Returns:
    The mean of floats; otherwise the value of the last replica.
  """
  replicas = of(strategy)
  if not replicas.are_several:
    return value
  values = compat.of_each(value, 1)
  if len(values) == 1:
    return values[0]
  values = [tf.convert_to_tensor(each) for each in values]
  if values[0].dtype.is_floating:
    return tf.add_n(values) / len(values)
  return values[-1]


def counted(strategy: Any, vector: tf.Tensor) -> tf.Tensor:
  """Returns what a step adds to metrics, or zeros if others count its batch.

  Args:
    strategy: the strategy that ran the step.
    vector: what the step adds, float64.
  """
  counts = getattr(strategy.extended, 'counts', None)
  if counts is None:
    return vector
  strategy.extended.counts = None
  return vector * tf.cast(counts, vector.dtype)


def split_results(strategy: Any, structure: Any) -> list[Any]:
  """Returns the result of each replica.

  Args:
    strategy: the strategy that ran the step.
    structure: nested structure of the replicas' values.
  """
  if not of(strategy).are_several:
    return [structure]
  flat = tf.nest.flatten(structure)
  number = max(len(compat.of_each(value, 1)) for value in flat)
  values = [compat.of_each(value, number) for value in flat]
  return [
    tf.nest.pack_sequence_as(structure, list(each))
    for each in zip(*values, strict=True)
  ]


def _num_examples(batch: Any) -> Any:
  """Returns the number of rows of a batch: an int if static, or a tensor."""
  for leaf in tf.nest.flatten(batch):
    shape = getattr(leaf, 'shape', None)
    if shape is not None and shape.rank != 0:
      known = shape[0] if shape.rank else None
      if known is not None:
        return known
      if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
      if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
      return tf.shape(leaf, tf.int64)[0]
  return 1


def _are_equal(sizes: Sequence[Any]) -> bool:
  return all(isinstance(size, int) for size in sizes) and len(set(sizes)) == 1


def _cpu_of(device: str) -> str:
  """Returns the CPU of a device's task."""
  spec: Any = tf.DeviceSpec.from_string(device)
  cpu: str = spec.replace(device_type='CPU', device_index=0).to_string()
  return cpu
