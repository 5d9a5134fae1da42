"""Internals of strategies, and of the server that this process connects by."""

import functools
import os
from typing import Any
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute import sharded_variable
from tensorflow.python.eager import context
from tensorflow.python.framework import composite_tensor_gradient
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import save_context
from tensorflow.python.training import server_lib

# A strategy delegates variables, updates and input to its `extended` object,
# whose class for parameter servers is not public.
Extended: TypeAlias = (
  parameter_server_strategy_v2.ParameterServerStrategyV2Extended
)

# `tf.GradientTape` asks a composite tensor's `__composite_gradient__`, which
# must be of this class, what to differentiate by. It is not public.
CompositeTensorGradient = composite_tensor_gradient.CompositeTensorGradient

# A sharded variable that enters a `tf.function` is flattened and rebuilt by its
# spec, which must make our class.
ShardedVariableSpec = sharded_variable.ShardedVariableSpec


def is_saving() -> bool:
  """Returns whether a SavedModel is being saved, which merges shards."""
  return bool(save_context.in_save_context())


def replace_extended(strategy: Any, extended: Any) -> None:
  """Replaces a strategy's `extended`, which its constructor does not take."""
  extended._retrace_functions_for_each_device = (
    strategy.extended._retrace_functions_for_each_device
  )
  strategy._extended = extended


def updating(variable: Any) -> Any:
  """Returns the context of updates of a variable on its own device."""
  return distribute_lib.UpdateContext(variable.device)


def colocated(variable: Any) -> Any:
  """Returns a scope of the variable's device, independent of outer scopes."""
  # `tf.compat.v1.colocate_with` takes no variable of eager mode.
  return ops.colocate_with(variable, ignore_existing=True)


def own_address(job: str) -> str:
  """Returns the address of this process' server, which is connected."""
  spec = tf.train.ClusterSpec(context.get_server_def().cluster)
  return str(spec.task_address(job, context.get_server_def().task_index))


def own_address_beside(job: str, others: tf.train.ClusterSpec) -> str | None:
  """Returns this server's address if its cluster has just these other tasks.

  Args:
    job: of this process.
    others: all other tasks of the cluster.

  Returns:
    None if this process is not connected, or to another cluster.
  """
  if context.get_server_def() is None:
    return None
  jobs = tf.train.ClusterSpec(context.get_server_def().cluster).as_dict()
  is_listed = jobs.pop(job, None) is not None
  return own_address(job) if is_listed and jobs == others.as_dict() else None


def is_own_address(job: str, address: str, *, index: int = 0) -> bool:
  """Returns whether this process' server is a task and has an address."""
  server_def = context.get_server_def()
  if server_def is None or server_def.job_name != job:
    return False
  if server_def.task_index != index:
    return False
  return own_address(job) == address


def num_server_threads() -> int | None:
  """Returns how many threads the servers of this process share.

  The server that connecting starts takes the number from the context, else from
  the environment, else the number of cores. None if there is no server.
  """
  if context.get_server_def() is None:
    return None
  return (
    context.context().inter_op_parallelism_threads
    or int(os.environ.get('TF_NUM_INTEROP_THREADS', 0))
    or os.cpu_count()
  )


@functools.cache
def let_ps_see_each_other() -> bool:
  """Lets ps see each other in strategies that connect from now on.

  A ps that sends to one that is hidden from it does not learn its new address.
  The runtime keeps a task's device filters from the first strategy of a process
  that connects.

  Returns:
    False if a strategy that hides ps from each other has connected before.
  """
  filters = server_lib.ClusterDeviceFilters
  set_filters = filters.set_device_filters

  @functools.wraps(set_filters)
  def set_more(self: Any, job: str, index: int, visible: list[str]) -> None:
    also = ['/job:ps'] if job == 'ps' else []
    set_filters(self, job, index, [*visible, *also])

  filters.set_device_filters = set_more
  return not _hides_ps(context.get_server_def())


def _hides_ps(server_def: Any) -> bool:
  jobs = server_def.cluster_device_filters.jobs if server_def else ()
  tasks = [
    task for job in jobs if job.name == 'ps' for task in job.tasks.values()
  ]
  return any('/job:ps' not in task.device_filters for task in tasks)


def let_threads_sleep() -> None:
  """Lets idle threads of the server that connecting starts sleep.

  See `tfps.server.server.default_config`: that server is configured by the
  context.
  """
  own = context.context()
  config = tf.compat.v1.ConfigProto()
  if own._config is not None:
    config.CopyFrom(own._config)
  config.experimental.disable_thread_spinning = True
  own._config = config
