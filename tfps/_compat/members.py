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

_MAX_TRIALS = 3


def update(
  server_def: Any = None,
  *,
  without: Collection[tuple[str, int]] = (),
  moved: Mapping[tuple[str, int], str] | None = None,
) -> None:
  """Takes back tasks that have restarted.

  Args:
    server_def: the whole cluster; by default the one that was told last.
    without: by job and index, the tasks to leave out. With one that does not
      answer, the call would wait for it.
    moved: by job and index, the addresses that are others now.

  Raises:
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
  # Else whatever another thread does next would fail of what was lost.
  context.context().clear_executor_errors()


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
    except tf.errors.UnavailableError as error:
      logging.warning('%s: %s', device, errors.first_line(error))
      context.context().clear_executor_errors()
