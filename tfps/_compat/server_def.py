"""Updates of the cluster as TensorFlow's runtime knows it."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import copy
import functools
import gc
from typing import Any

from absl import logging
import tensorflow as tf
from tensorflow.python.eager import context

from tfps import errors
from tfps._compat import stale_cache

_MAX_TRIALS = 3


def update(
  server_def: Any = None,
  *,
  without: Collection[tuple[str, int]] = (),
  moved: Mapping[tuple[str, int], str] | None = None,
  forget_secs: float | None = None,
) -> None:
  """Connects this process to tasks that have restarted or moved.

  Args:
    server_def: the whole cluster; by default the one of the last call.
    without: the job and index of tasks to leave out: the call would wait for a
      task that does not answer.
    moved: job and index -> new address.
    forget_secs: how long to wait for executions to end.

  Raises:
    stale_cache.StillExecutingError: executions have not ended in time. The
      runtime knows the tasks nevertheless.
    tf.errors.OpError: a task could not be reached.
  """
  server_def = copy.deepcopy(server_def or context.get_server_def())
  for job in server_def.cluster.job:
    for (name, index), address in (moved or {}).items():
      if name == job.name:
        job.tasks[index] = address
    for index in list(job.tasks):
      if (job.name, index) in without:
        del job.tasks[index]
  context.context().update_server_def(server_def)
  stale_cache.forget(forget_secs)


@functools.cache
def call_before_connecting(call: Callable[[], object]) -> None:
  """Calls a function each time before this process connects to a cluster anew.

  Strategies of TensorFlow connect, too, and have no hook for that.

  Args:
    call: the function; the runtime has its objects still.
  """
  theirs = context.Context.set_server_def

  @functools.wraps(theirs)
  def set_server_def(self: Any, *args: Any, **kwargs: Any) -> Any:
    call()
    return theirs(self, *args, **kwargs)

  context.Context.set_server_def = set_server_def


def become(cluster: tf.train.ClusterSpec) -> None:
  """Makes the server of this process a member of another cluster.

  It keeps its port and its task, which must be in that cluster. Connecting to
  the cluster afterwards keeps the server; otherwise it would start another one,
  whose port, if the cluster lists this process, is taken by the first.

  Args:
    cluster: in which other tasks may be new or have new addresses.

  Raises:
    tf.errors.OpError: a task could not be reached.
  """
  server_def = copy.deepcopy(context.get_server_def())
  if server_def.cluster != cluster.as_cluster_def():
    server_def.cluster.CopyFrom(cluster.as_cluster_def())
    update(server_def)


def place(server_def: Any, job: str, index: int, address: str) -> None:
  """Sets the address of a task, which may be new, in a `ServerDef`.

  A new task gets the device filters of the job's other tasks: it does not
  connect to tasks that it does not see.

  Args:
    server_def: to be changed.
    job: of the task.
    index: of the task.
    address: 'host:port'.
  """
  for each in server_def.cluster.job:
    if each.name == job:
      each.tasks[index] = address
  for each in server_def.cluster_device_filters.jobs:
    if each.name == job and index not in each.tasks:
      each.tasks[index].CopyFrom(each.tasks[min(each.tasks)])


def forget_losses() -> None:
  """Discards errors of an earlier cluster, which the next call would raise.

  The deletion of a value on a dead task fails in the background, and the
  runtime raises that error in the next call, whatever it does on which task. So
  does a connection from before a task's restart.
  """
  try:
    context.async_wait()
  except tf.errors.OpError:
    gc.collect()  # deletions that come later would fail in the same way
    context.context().clear_executor_errors()
  for device in tf.config.list_logical_devices('CPU'):
    _wait_until_usable(device.name)


def _wait_until_usable(device: str) -> None:
  """Repeats an empty operation on a device until it succeeds."""
  for _ in range(_MAX_TRIALS):
    try:
      with tf.device(device):
        tf.raw_ops.NoOp()
        context.async_wait()
      return
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
      logging.warning('%s: %s', device, errors.first_line(error))
      context.context().clear_executor_errors()
