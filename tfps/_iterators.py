"""Iterators over datasets whose end holds up nobody.

TensorFlow waits, where it deletes an iterator, for the thread that tunes the
pipeline. It wakes that thread a moment before it says that it is to end, and
one that is quick to look sleeps on, for as long as a minute. Where a client
lets go of an iterator, its server waits with a lock held without which it does
nothing else for that client. So iterators are let go of by threads of their
own, and those on servers are emptied first.

That is an operation on a server, and fatal to the process where it connects
anew meanwhile, or has done so: what iterators of earlier connections were on
has been deleted. They go with their servers' part of the connection.
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

from tfps import _gate
from tfps import errors
from tfps._compat import eager_contexts
from tfps._compat import executors

# More than TensorFlow takes to end a pipeline.
_EMPTY_SECS = 90.0

_gate_of_emptying = _gate.Gate()
_emptied_on: list[str] = []

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


@contextlib.contextmanager
def connecting() -> Iterator[None]:
  """What is done in it connects this process, perhaps not for the first time.

  Raises:
    errors.DeadlineError: a server of before does not end an iterator.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(_gate_of_emptying.closed(within_secs=_EMPTY_SECS))
    except TimeoutError:
      where = ', '.join(sorted(set(_emptied_on)))
      raise errors.DeadlineError(
        'This process has had other servers before, and has let go of '
        f'iterators there. They have not ended after {_EMPTY_SECS:g} seconds '
        f'on {where}. End those servers, or connect in another process.'
      ) from None
    yield


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
    device: where it is. Of an earlier connection, the handle must not be asked.
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
  with _gate_of_emptying:
    if left.connection != eager_contexts.own_id():
      return
    _emptied_on.append(left.device)
    try:
      with executors.own(), tf.device(left.device):
        left.emptying(left.handle)
    except tf.errors.OpError:
      pass  # it has gone with its server
    finally:
      _emptied_on.remove(left.device)
