"""Iterators over datasets whose end holds up nobody.

TensorFlow waits, where it deletes an iterator, for the thread that tunes the
pipeline. It wakes that thread a moment before it says that it is to end, and
one that is quick to look sleeps on, for as long as a minute. Where a client
lets go of an iterator, its server waits with a lock held without which it does
nothing else for that client. So iterators are let go of by threads of their
own, and those on servers are emptied first.

Of a connection that has been replaced, handles must not even be asked where
they are: what they are on has been deleted, and so have they, on the server.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import queue
import threading
from typing import Any
from typing import NamedTuple
import weakref

import tensorflow as tf

from tfps._compat import eager_contexts
from tfps._compat import side_executor

# Gets the handle of an iterator.
Emptying = Callable[[Any], object]


def over(
  dataset: tf.data.Dataset, emptying: Emptying | None = None
) -> Iterator[Any]:
  """An iterator over a dataset.

  Args:
    dataset: it may be on a server.
    emptying: what empties iterators over such datasets, for those on servers.
  """
  iterator = iter(dataset)
  (handle,) = tf.nest.flatten(iterator, expand_composites=True)
  left = _Left(handle, emptying, handle.device, eager_contexts.own_id())
  ending = weakref.finalize(iterator, _left_behind().put, left)
  ending.atexit = False
  return iterator


def emptying(element_spec: Any) -> Emptying:
  """Empties iterators over such elements, on the servers that have them.

  To be made before a task is lost: it traces.
  """

  def fill_with_nothing(handle: tf.Tensor) -> None:
    nothing = tf.data.Dataset.range(0).map(
      lambda _: tf.experimental.Optional.empty(element_spec).get_value()
    )
    options = tf.data.Options()
    options.autotune.enabled = False  # so that there is no thread to wait for
    variant = tf.data.experimental.to_variant(nothing.with_options(options))
    tf.raw_ops.MakeIterator(dataset=variant, iterator=handle)

  handle = tf.TensorSpec([], tf.resource)
  return tf.function(fill_with_nothing).get_concrete_function(handle)


class _Left(NamedTuple):
  """An iterator that nobody uses any more.

  Attributes:
    handle: keeps it alive.
    emptying: what empties it, if it is on a server.
    device: where it is.
    connection: by which this process had it.
  """

  handle: Any
  emptying: Emptying | None
  device: str
  connection: int


@functools.cache
def _left_behind() -> queue.SimpleQueue[_Left]:
  """To where others may put something while they collect garbage.

  They should not start a thread then.
  """
  left_behind: queue.SimpleQueue[_Left] = queue.SimpleQueue()

  def run() -> None:
    while True:
      threading.Thread(
        target=_let_go, args=(left_behind.get(),), name='tfps-end', daemon=True
      ).start()

  threading.Thread(target=run, name='tfps-ends', daemon=True).start()
  return left_behind


def _let_go(left: _Left) -> None:
  if left.emptying is None:
    return
  with (
    contextlib.suppress(tf.errors.OpError),  # it has gone with its server
    side_executor.aside(left.device),
  ):
    if left.connection == eager_contexts.own_id():
      left.emptying(left.handle)
