"""Eager contexts of clients on a server: opened, closed and emptied by RPC.

Each client has a context on every server that it connects to. The server
recreates its collective manager for a context that finds no other there. Of two
that come at the same moment, the second replaces, and so destroys, the manager
that the first keeps using: the server dies of a segmentation fault. A context
that exists before clients can come, and stays, prevents it.

Any process can close a context by its number: a client that has been replaced
then does no more harm.

The requests have no classes in Python; services and fields are those of
TensorFlow's `eager_service.proto` and `worker.proto`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from tfps._compat import rpc

_CREATE = '/tensorflow.eager.EagerService/CreateContext'
_CLOSE = '/tensorflow.eager.EagerService/CloseContext'
_CLEAN_UP = '/tensorflow.WorkerService/CleanupAll'
_FIRST_ID = 0x74667073  # clients draw 64 random bits
_FOR_EVER = 0  # as the seconds without use after which a context is dropped
_ANY_VIEW = 2**62  # later than any

# Of TensorFlow's requests, the fields that are used here.
_FIELDS = {
  _CREATE: (
    ('server_def', 1, rpc.KINDS.TYPE_BYTES),  # a message looks the same
    ('keep_alive_secs', 3, rpc.KINDS.TYPE_INT64),
    ('context_id', 7, rpc.KINDS.TYPE_FIXED64),
  ),
  _CLOSE: (
    ('context_id', 1, rpc.KINDS.TYPE_FIXED64),
    ('context_view_id', 2, rpc.KINDS.TYPE_FIXED64),
  ),
  _CLEAN_UP: (('container', 1, rpc.KINDS.TYPE_STRING),),  # the first of several
}


def own_id() -> int:
  """Returns the number of this process' context on all servers it uses."""
  return int(pywrap_tfe.TFE_GetContextId(context.context()._handle))


def open_first(
  address: str,
  *,
  job: str,
  index: int,
  start: Callable[[], object],
  timeout_secs: float,
) -> None:
  """Starts a server whose first client has a permanent context.

  Args:
    address: where the server listens, as 'host:port'.
    job: of the server's task.
    index: of the server's task.
    start: starts the server, which listens but does not answer before.
    timeout_secs: how long to wait for its answer.

  Raises:
    grpc.RpcError: the call failed.
  """
  server_def = tf.train.ServerDef(
    cluster=tf.train.ClusterSpec({job: {index: address}}).as_cluster_def(),
    job_name=job,
    task_index=index,
    protocol='grpc',
  )
  _call(
    address,
    _CREATE,
    timeout_secs,
    start,
    server_def=server_def.SerializeToString(),
    keep_alive_secs=_FOR_EVER,
    context_id=_FIRST_ID,
  )


def close(address: str, number: int, *, timeout_secs: float) -> None:
  """Closes a process' context on a server, if it exists.

  Later operations of that process fail there, and the memory of its variables
  without a shared name is freed.

  Args:
    address: where the server listens, as 'host:port'.
    number: of the context.
    timeout_secs: how long to wait for its answer.

  Raises:
    grpc.RpcError: the call failed.
  """
  _call(
    address,
    _CLOSE,
    timeout_secs,
    context_id=number,
    context_view_id=_ANY_VIEW,
  )


def empty(address: str, container: str, *, timeout_secs: float) -> None:
  """Deletes the resources of a container on a server.

  Args:
    address: where the server listens, as 'host:port'.
    container: its name.
    timeout_secs: how long to wait for its answer.

  Raises:
    grpc.RpcError: the call failed.
  """
  _call(address, _CLEAN_UP, timeout_secs, container=container)


def _call(
  address: str,
  method: str,
  timeout_secs: float,
  meanwhile: Callable[[], object] = lambda: None,
  **fields: Any,
) -> None:
  name = f'{method.rpartition("/")[2]}Request'
  request = rpc.message_class(name, _FIELDS[method])(**fields)
  rpc.call(
    address,
    method,
    request.SerializeToString(),
    timeout_secs=timeout_secs,
    meanwhile=meanwhile,
  )
