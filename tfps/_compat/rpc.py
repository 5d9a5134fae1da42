"""Calls of services of TensorFlow's servers whose messages have no class here.

TensorFlow's wheel has no Python classes for them. A message with the fields
that are used, by their numbers, is the same for the server.
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
import grpc

KINDS = descriptor_pb2.FieldDescriptorProto
_CHANNEL_OPTIONS = (
  ('grpc.enable_http_proxy', 0),
  ('grpc.max_receive_message_length', -1),
)


def call(
  address: str,
  method: str,
  request: bytes,
  *,
  timeout_secs: float,
  meanwhile: Callable[[], object] = lambda: None,
) -> bytes:
  """Calls a method of a server, and returns the serialized response.

  Args:
    address: where the server listens, as 'host:port'.
    method: '/package.Service/Method'.
    request: the serialized request.
    timeout_secs: how long to wait for the response.
    meanwhile: called once the request is under way.

  Raises:
    grpc.RpcError: the call failed.
  """
  with grpc.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
    answer: Any = channel.unary_unary(method).future(
      request, timeout=timeout_secs
    )
    meanwhile()
    return bytes(answer.result())


@functools.cache
def message_class(name: str, fields: Iterable[tuple[str, int, Any]]) -> Any:
  """Returns a class of messages.

  Args:
    name: of the class.
    fields: name, number and kind, of `KINDS`, of each field. One that is a
      message is of `TYPE_BYTES`, which looks the same.
  """
  file = descriptor_pb2.FileDescriptorProto(
    name=f'tfps/{name}.proto', package='tfps', syntax='proto3'
  )
  message = file.message_type.add(name=name)
  for field, number, kind in fields:
    message.field.add(
      name=field, number=number, type=kind, label=KINDS.LABEL_OPTIONAL
    )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName(f'tfps.{name}')
  )
