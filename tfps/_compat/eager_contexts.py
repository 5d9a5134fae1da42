"""What servers with several clients need of TensorFlow's eager service.

Each client has a context on every server that it connects to. The server makes
the manager of collectives anew for a context that finds no other there. Of two
that come at the same moment, the second replaces, and so destroys, the manager
that the first goes on to use: the server dies of a segmentation fault. A
context that is there from the beginning, and stays, prevents it.

The request has no class in Python; the service and its fields are TensorFlow's
`eager_service.proto`.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
import grpc
import tensorflow as tf

_METHOD = '/tensorflow.eager.EagerService/CreateContext'
_CONTEXT_ID = 0x74667073  # clients draw 64 random bits
_FOR_EVER = 0  # the seconds without use after which a context is dropped
_CHANNEL_OPTIONS = (('grpc.enable_http_proxy', 0),)


def open_first(
  address: str, *, job: str, index: int, timeout_secs: float
) -> None:
  """Opens a context that stays, on a server that nobody has connected to yet.

  Args:
    address: where the server listens, as 'host:port'.
    job: of the server's task.
    index: of the server's task.
    timeout_secs: how long to wait for its answer.

  Raises:
    grpc.RpcError: the server did not do it.
  """
  request = _request_class()(
    server_def=tf.train.ServerDef(
      cluster=tf.train.ClusterSpec({job: {index: address}}).as_cluster_def(),
      job_name=job,
      task_index=index,
      protocol='grpc',
    ).SerializeToString(),
    keep_alive_secs=_FOR_EVER,
    context_id=_CONTEXT_ID,
  )
  with grpc.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
    call: Any = channel.unary_unary(_METHOD)
    call(request.SerializeToString(), timeout=timeout_secs)


@functools.cache
def _request_class() -> Any:
  """Of the fields of `CreateContextRequest` those that are used here."""
  kinds = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
    name='tfps/create_context.proto', package='tfps', syntax='proto3'
  )
  message = file.message_type.add(name='CreateContextRequest')
  for name, number, kind in (
    ('server_def', 1, kinds.TYPE_BYTES),  # a message looks the same
    ('keep_alive_secs', 3, kinds.TYPE_INT64),
    ('context_id', 7, kinds.TYPE_FIXED64),
  ):
    message.field.add(
      name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL
    )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName('tfps.CreateContextRequest')
  )
