"""Iterators over datasets that are deleted without blocking other work.

When TensorFlow deletes an iterator, it waits for the thread that tunes the
pipeline. It wakes that thread just before it sets the flag that ends it; if the
thread reads the flag too early, it sleeps again, for up to a minute. When a
client deletes an iterator on a server, the server waits while holding a lock
that all other calls of that client need. Therefore threads of their own delete
iterators, and iterators on servers are first replaced by empty ones. Such a
thread lets go last: until then it waits for the other references to a handle,
one of which the thread has that has just let go of the iterator.

Handles of a connection that was replaced must not be used, not even to get
their device: they and their devices have been deleted on the server.
"""

import atexit
from collections.abc import Callable
from collections.abc import Iterator
import concurrent.futures
import contextlib
import functools
import queue
import sys
import threading
import time
from typing import Any
from typing import NamedTuple
import weakref

import tensorflow as tf

from tfps._compat import eager_contexts
from tfps._compat import side_executor
from tfps._utils import threads
from tfps._utils import timeouts

# Of a handle that a function has in a variable: that, and the argument of
# `sys.getrefcount`.
_OWN_REFERENCES = 2

# Replaces the iterator of a handle by an empty one.
Emptying = Callable[[Any], object]


def over(
  dataset: tf.data.Dataset, emptying: Emptying | None = None
) -> Iterator[Any]:
  """Returns an iterator over a dataset.

  Args:
    dataset: local, or on a server.
    emptying: for a dataset on a server, empties iterators of its type.
  """
  iterator = iter(dataset)
  (handle,) = tf.nest.flatten(iterator, expand_composites=True)
  unused = _Unused(handle, emptying, handle.device, eager_contexts.own_id())
  # In a list, from which it is taken: the finalizer refers to its arguments
  # until after the queue has them.
  finalizer = weakref.finalize(iterator, _deletions().put, [unused])
  finalizer.atexit = False
  return iterator


class RestartableIterator:
  """Iterator over a dataset of this process that restarts after interruptions.

  TensorFlow may leave an iterator at, or near, its end when an execution that
  uses it is interrupted, for example by the loss of a ps. A step that finds no
  batch may still apply some of its updates. So after an interruption a new
  iterator starts at the beginning of the dataset.

  Args:
    dataset: the dataset; it must not end.
    num_interruptions: returns how many executions have been interrupted.
  """

  def __init__(
    self, dataset: tf.data.Dataset, num_interruptions: Callable[[], int]
  ) -> None:
    self._dataset = dataset
    self._num_interruptions = num_interruptions
    self._begun_after = num_interruptions()
    self._iterator = over(dataset)

  @property
  def spec(self) -> Any:
    """The type of its iterators."""
    return tf.data.IteratorSpec(self._dataset.element_spec)

  @property
  def iterator(self) -> Any:
    """The current iterator; a new one after an interruption."""
    num_interruptions = self._num_interruptions()
    if num_interruptions != self._begun_after:
      self._begun_after = num_interruptions
      self._iterator = over(self._dataset)
    return self._iterator


def begin_again(iterator: Any, dataset: tf.data.Dataset) -> None:
  """Lets an iterator begin a dataset, whatever it has iterated over.

  Args:
    iterator: the iterator; its handle stays the same.
    dataset: has elements of the same type, and is on the iterator's device.
  """
  (handle,) = tf.nest.flatten(iterator, expand_composites=True)
  variant = tf.data.experimental.to_variant(dataset)
  tf.raw_ops.MakeIterator(dataset=variant, iterator=handle)


def emptying(element_spec: Any) -> Emptying:
  """Returns a function that empties iterators on servers.

  It is traced here, so call this before a task can be lost.

  Args:
    element_spec: the type of the iterators' elements.
  """

  def empty(handle: tf.Tensor) -> None:
    nothing = tf.data.Dataset.range(0).map(
      lambda _: tf.experimental.Optional.empty(element_spec).get_value()
    )
    options = tf.data.Options()
    options.autotune.enabled = False  # so that there is no thread to wait for
    variant = tf.data.experimental.to_variant(nothing.with_options(options))
    tf.raw_ops.MakeIterator(dataset=variant, iterator=handle)

  handle = tf.TensorSpec([], tf.resource)
  return tf.function(empty, autograph=False).get_concrete_function(handle)


class _Unused(NamedTuple):
  """Iterator that is not used any more.

  Attributes:
    handle: keeps it alive.
    emptying: empties it; None if it is in this process.
    device: its device.
    connection: the id of this process' connection when it was made.
  """

  handle: Any
  emptying: Emptying | None
  device: str
  connection: int


class Deletions:
  """Deletes iterators, each on a thread of its own, until the process exits.

  Finalizers run during garbage collection, where no thread should be started.

  The exit waits for deletions under way, and begins no more: what TensorFlow
  deletes has Python objects, and a thread that asks for the interpreter once
  that has ended would abort the process.

  Args:
    delete: deletes the iterator of a list of one; once its second argument is
      set, it waits for nothing else.
  """

  def __init__(
    self, delete: Callable[[list[_Unused], threading.Event], object]
  ) -> None:
    self._delete = delete
    self._stopping = threading.Event()
    self._queue: queue.SimpleQueue[list[_Unused] | None] = queue.SimpleQueue()
    self._under_way: list[concurrent.futures.Future[object]] = []
    self._running = threads.begin('tfps-ends', self._run)
    atexit.register(self.stop)

  def put(self, box: list[_Unused]) -> None:
    """Adds an iterator to be deleted; does not wait."""
    self._queue.put(box)

  def stop(self) -> None:
    """Waits for deletions under way, for seconds, and begins no more."""
    self._stopping.set()
    self._queue.put(None)
    secs = timeouts.current().thread_stop_secs
    if threads.is_done(self._running, secs):
      concurrent.futures.wait(self._under_way, secs)

  def _run(self) -> None:
    while (box := self._queue.get()) is not None:
      delete = functools.partial(self._delete, box, self._stopping)
      del box  # it would keep the handle
      left = [each for each in self._under_way if not each.done()]
      self._under_way = [*left, threads.begin('tfps-end', delete)]


@functools.cache
def _deletions() -> Deletions:
  return Deletions(_delete)


def _delete(box: list[_Unused], stopping: threading.Event) -> None:
  handle, emptying, device, connection = box.pop()
  if emptying is not None:
    with (
      contextlib.suppress(tf.errors.OpError),  # deleted with its server
      side_executor.run_aside(device),
    ):
      if connection == eager_contexts.own_id():
        emptying(handle)
  times = timeouts.current()
  deadline = time.monotonic() + times.let_go_secs
  while sys.getrefcount(handle) > _OWN_REFERENCES:
    if time.monotonic() > deadline or stopping.wait(times.poll_secs):
      return
