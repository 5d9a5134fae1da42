"""Where the replicas of a step run, and how their gradients become one.

A step may run on several devices at once: on those of one worker, or, in graph,
on those of all workers. Each replica has a batch of its own.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import replicas as compat
from tfps.cluster import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Replicas:
  """The replicas that a strategy's steps have.

  Attributes:
    devices: of each replica, those of a worker after another. A device without
      a task is of the worker that executes the step.
    per_worker: how many of them are in one worker. The gradients of these are
      added up, so that who writes a step divides the loss by it, as Keras does;
      over workers the mean is taken.
  """

  devices: tuple[str, ...] = ('/device:CPU:0',)
  per_worker: int = 1

  @property
  def are_several(self) -> bool:
    return len(self.devices) > 1

  @property
  def span_workers(self) -> bool:
    return len(self.devices) > self.per_worker

  @property
  def sizes(self) -> tuple[int, ...]:
    """Of how many of them steps are where there may be fewer batches.

    Of all, of half of them, and so on, so that few graphs are needed.
    """
    number = len(self.devices)
    return tuple(number >> i for i in range(number.bit_length()))

  def group(self, batches: Any) -> 'Group':
    """Those that take part in a step.

    Args:
      batches: of each, or None. There may be fewer than replicas.
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
    devices: of each.
    per_worker: as for `Replicas`.
    sizes: how many examples each has; None if all count the same.
  """

  devices: tuple[str, ...]
  per_worker: int
  sizes: tuple[Any, ...] | None

  def weights(self) -> list[Any]:
    """By which the replicas' gradients are multiplied, to be added up."""
    number = len(self.devices)
    if self.sizes is None or _are_equal(self.sizes):
      return [self.per_worker / number] * number
    total = tf.cast(
      tf.add_n([tf.convert_to_tensor(s) for s in self.sizes]), 'float64'
    )
    return [self.per_worker * tf.cast(s, 'float64') / total for s in self.sizes]


def find(names: Iterable[str], *, span_workers: bool) -> Replicas:
  """A replica for each GPU of a worker, or without any for each of its CPUs.

  Args:
    names: of all logical devices in a cluster.
    span_workers: whether a step has those of all workers.

  Raises:
    ValueError: workers have different numbers of them.
  """
  by_worker: dict[int, list[Any]] = collections.defaultdict(list)
  for spec in map(tf.DeviceSpec.from_string, names):
    if spec.job == 'worker':
      by_worker[spec.task].append(spec)
  own = {task: _computing(specs) for task, specs in sorted(by_worker.items())}
  numbers = {task: len(specs) for task, specs in own.items()}
  if len(set(numbers.values())) > 1:
    told = ', '.join(f'worker:{t} has {n}' for t, n in numbers.items())
    raise ValueError(
      f'Workers have different numbers of devices: {told}. Give all the same, '
      'for example with CUDA_VISIBLE_DEVICES.'
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


def of_task(names: Iterable[str], task: spec_lib.Task) -> Replicas:
  """A replica for each GPU of one task, or without any for each of its CPUs.

  Args:
    names: of all logical devices in a cluster.
    task: executes the steps.
  """
  specs = [
    spec
    for spec in map(tf.DeviceSpec.from_string, names)
    if (spec.job, spec.task) == (task.job, task.index)
  ]
  devices = tuple(
    f'/device:{spec.device_type}:{spec.device_index}'
    for spec in _computing(specs)
  )
  return Replicas(devices, len(devices)) if devices else Replicas()


def _computing(specs: Sequence[Any]) -> list[Any]:
  """The GPUs among a worker's devices, or else its CPUs, in their order."""
  gpus = [spec for spec in specs if spec.device_type == 'GPU']
  cpus = [spec for spec in specs if spec.device_type == 'CPU']
  return sorted(gpus or cpus, key=lambda spec: spec.device_index)


def of(strategy: Any) -> Replicas:
  """A strategy's; one that knows of none has a single one."""
  found = getattr(strategy.extended, 'replicas', None)
  return found if isinstance(found, Replicas) else Replicas()


def meet(strategy: Any) -> bool:
  """Whether what is being traced is one of several replicas of a step."""
  if not of(strategy).are_several or strategy.extended.group is None:
    return False
  context = tf.distribute.get_replica_context()
  return context is not None and context.strategy is strategy


@contextlib.contextmanager
def as_one(strategy: Any) -> Iterator[None]:
  """Within it, while all replicas of a step meet, there is but one."""
  extended = strategy.extended
  group, extended.group = extended.group, None
  try:
    with tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0):
      yield
  finally:
    extended.group = group


def worker_device() -> str:
  """The device of the replica that is being traced, if that has a task.

  Else empty: it is on the worker that executes the step. A device scope does
  not tell, as variables are read outside of it.
  """
  context = tf.distribute.get_replica_context()
  if context is None or not of(context.strategy).span_workers:
    return ''
  group: Group | None = context.strategy.extended.group
  return group.devices[compat.current()] if group else ''


def draw(strategy: Any, batches: Any, number: int | None = None) -> Any:
  """A step's batch: the next one, or the next one for each of its replicas.

  Args:
    strategy: whose step it is.
    batches: an iterator, or one for each worker.
    number: how many of the replicas take part; by default all.
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


def dealt(strategy: Any, batches: Sequence[Any]) -> Any:
  """A step's batch: the only one, or one for each of its first replicas."""
  return compat.Batches(batches) if of(strategy).are_several else batches[0]


def given(strategy: Any, batches: Any) -> Any:
  """A step's batch: what is given, or for each replica its piece of it.

  Args:
    strategy: whose step it is.
    batches: a batch, or if replicas are several their pieces of it.
  """
  if not of(strategy).are_several:
    return batches
  return compat.Batches(batches, [_num_examples(batch) for batch in batches])


def merged(strategy: Any, value: Any) -> Any:
  """One scalar for those that the replicas of a step have returned."""
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


def of_each(strategy: Any, structure: Any) -> list[Any]:
  """What each replica has returned."""
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
  """The rows of a batch; a number if it is known in the graph."""
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
  """The CPU of a device's task."""
  spec: Any = tf.DeviceSpec.from_string(device)
  cpu: str = spec.replace(device_type='CPU', device_index=0).to_string()
  return cpu
