"""What `tfps.strategy` needs of TensorFlow's insides."""

from collections.abc import Iterator
import contextlib
import os
from typing import Any
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.training import server_lib

# A strategy's variables, updates and input are the business of its `extended`
# object, whose class for parameter servers is not public.
Extended: TypeAlias = (
  parameter_server_strategy_v2.ParameterServerStrategyV2Extended
)


def replace_extended(strategy: Any, extended: Any) -> None:
  """Gives a strategy another `extended`; its constructor takes none."""
  extended._retrace_functions_for_each_device = (
    strategy.extended._retrace_functions_for_each_device
  )
  strategy._extended = extended


def updating(variable: Any) -> Any:
  """The context in which a strategy updates a variable on its own device."""
  return distribute_lib.UpdateContext(variable.device)


def colocated(variable: Any) -> Any:
  """A scope for operations on the variable's device, whatever the scope."""
  # `tf.compat.v1.colocate_with` takes no variable of eager mode.
  return ops.colocate_with(variable, ignore_existing=True)


def own_address(job: str) -> str:
  """Where the server of this process listens once it is in a cluster."""
  spec = tf.train.ClusterSpec(context.get_server_def().cluster)
  return str(spec.task_address(job, context.get_server_def().task_index))


def own_address_beside(job: str, others: tf.train.ClusterSpec) -> str | None:
  """Likewise, or None unless it is in the cluster of just these others."""
  if context.get_server_def() is None:
    return None
  jobs = tf.train.ClusterSpec(context.get_server_def().cluster).as_dict()
  is_listed = jobs.pop(job, None) is not None
  return own_address(job) if is_listed and jobs == others.as_dict() else None


def is_own_address(job: str, address: str, *, index: int = 0) -> bool:
  """Whether the server of this process is this task, and listens there."""
  server_def = context.get_server_def()
  if server_def is None or server_def.job_name != job:
    return False
  if server_def.task_index != index:
    return False
  return own_address(job) == address


def num_server_threads() -> int | None:
  """How many threads the servers of this process share; None without any.

  The server that connecting starts takes what the context says, what the
  environment says if that says nothing, or else one for each core.
  """
  if context.get_server_def() is None:
    return None
  return (
    context.context().inter_op_parallelism_threads
    or int(os.environ.get('TF_NUM_INTEROP_THREADS', 0))
    or os.cpu_count()
  )


@contextlib.contextmanager
def letting_ps_see_each_other() -> Iterator[None]:
  """Has a strategy that connects meanwhile not hide ps from each other.

  One that sends to a hidden one is not told when that has moved.
  """
  filters = server_lib.ClusterDeviceFilters
  set_filters = filters.set_device_filters

  def set_more(self: Any, job: str, index: int, visible: list[str]) -> None:
    also = ['/job:ps'] if job == 'ps' else []
    set_filters(self, job, index, [*visible, *also])

  filters.set_device_filters = set_more
  try:
    yield
  finally:
    filters.set_device_filters = set_filters


def let_threads_sleep() -> None:
  """Has the server that connecting starts sleep while there is no work.

  See `server.default_config`: this one takes its settings from the context.
  """
  own = context.context()
  config = tf.compat.v1.ConfigProto()
  if own._config is not None:
    config.CopyFrom(own._config)
  config.experimental.disable_thread_spinning = True
  own._config = config
