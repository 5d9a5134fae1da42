"""Tells TensorFlow's runtime which tasks are in the cluster now."""

from collections.abc import Collection
from collections.abc import Mapping
import copy
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
  """Takes back tasks that have restarted.

  Args:
    server_def: the whole cluster; by default the one that was told last.
    without: by job and index, the tasks to leave out. With one that does not
      answer, the call would wait for it.
    moved: by job and index, the addresses that are others now.
    forget_secs: how long to wait for what is being executed.

  Raises:
    stale.StillExecutingError: it is not over. The runtime knows of the tasks.
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


def become(cluster: tf.train.ClusterSpec) -> None:
  """Has the server of this process go on as a member of another cluster.

  It keeps its port, and its name, which has to be in that cluster. Once told,
  connecting to the cluster keeps the server; else it would start another one,
  and of a cluster that lists this process the port is taken, by itself.

  Args:
    cluster: where other tasks may be elsewhere, or be others.

  Raises:
    tf.errors.OpError: a task could not be reached.
  """
  server_def = copy.deepcopy(context.get_server_def())
  if server_def.cluster != cluster.as_cluster_def():
    server_def.cluster.CopyFrom(cluster.as_cluster_def())
    update(server_def)


def place(server_def: Any, job: str, index: int, address: str) -> None:
  """Notes where a task is, which may be a new one.

  It gets the device filters of the job's other tasks: with tasks that it does
  not see it does not connect.
  """
  for each in server_def.cluster.job:
    if each.name == job:
      each.tasks[index] = address
  for each in server_def.cluster_device_filters.jobs:
    if each.name == job and index not in each.tasks:
      each.tasks[index].CopyFrom(each.tasks[min(each.tasks)])


def forget_losses() -> None:
  """Keeps errors of an earlier cluster from whoever does something next.

  What is let go on a task that is dead fails with nobody waiting for it, and
  the runtime tells that to the next caller, whatever it does and with whom. So
  does a connection from before a task's restart.
  """
  try:
    context.async_wait()
  except tf.errors.OpError:
    gc.collect()  # rather now than later, which would fail in the same way
    context.context().clear_executor_errors()
  for device in tf.config.list_logical_devices('CPU'):
    _try_out(device.name)


def _try_out(device: str) -> None:
  """Does nothing on a device, again and again until that succeeds."""
  for _ in range(_MAX_TRIALS):
    try:
      with tf.device(device):
        tf.raw_ops.NoOp()
        context.async_wait()
      return
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
      logging.warning('%s: %s', device, errors.first_line(error))
      context.context().clear_executor_errors()
