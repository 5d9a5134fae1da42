"""Collectives of several processes whose group changes while they run.

TensorFlow enables collectives once, at the start of a program, and its own
strategies end when a process is lost. Enabling them again replaces what a
process knows of the others, and nothing else: its server keeps its port, its
variables keep their values, and functions keep their graphs, because the second
version of the operations takes the size and the key of a group as inputs.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context


def enable(
  addresses: Mapping[tuple[str, int], str],
  job: str,
  index: int,
  *,
  leader: tuple[str, int],
  config: Any,
) -> None:
  """Makes this process a member of a group, instead of the one before.

  Nothing may be executing in this process. The members must not begin a
  collective before all of them have made this call.

  Args:
    addresses: 'host:port' of each member, by its job and index.
    job: job of this process.
    index: index of this process.
    leader: job and index of the member that coordinates the others.
    config: `ConfigProto` of this process' server, which the first call starts.

  Raises:
    tf.errors.OpError: the server could not be started.
  """
  cluster: dict[str, dict[int, str]] = {}
  for (name, number), address in addresses.items():
    cluster.setdefault(name, {})[number] = address
  own_config = tf.compat.v1.ConfigProto()
  own_config.CopyFrom(config)
  own_config.experimental.collective_group_leader = device(*leader)
  server_def = tf.train.ServerDef(
    cluster=tf.train.ClusterSpec(cluster).as_cluster_def(),
    job_name=job,
    task_index=index,
    protocol='grpc',
    default_session_config=own_config,
  )
  own = context.context()
  own._collective_ops_server_def = server_def
  if own._context_handle is None:
    own.ensure_initialized()
    return
  # As `Context.enable_collective_ops` does, which warns each time.
  pywrap_tfe.TFE_EnableCollectiveOps(
    own._handle, server_def.SerializeToString()
  )
  own._initialize_logical_devices()
  own._clear_caches()


def abort(reason: str) -> None:
  """Makes collectives of this process fail, until they are enabled again.

  Args:
    reason: text of their error.
  """
  context.context().abort_collective_ops(int(tf.errors.ABORTED), reason)


def device(job: str, index: int) -> str:
  """Returns the name of a task as it begins the names of its devices."""
  return f'/job:{job}/replica:0/task:{index}'


def abandon(session: Any) -> None:
  """Lets go of a session without telling its server, which may not answer.

  `Session.close`, and the deletion of a session that is not closed, wait for an
  answer as long as for any call.

  Args:
    session: a `tf.compat.v1.Session`, which is not used any more.
  """
  session._closed = True
