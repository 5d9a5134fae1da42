"""Canaries for what `tfps._compat.eager_contexts` relies upon."""

import grpc
import pytest

import tfps
from tfps._compat import eager_contexts

_KEEP_ALIVE = '/tensorflow.eager.EagerService/KeepAlive'


def keep_alive(address, context_id):
  # A `KeepAliveRequest`, whose first field is the 64 bits of the context's id.
  request = b'\x09' + context_id.to_bytes(8, 'little')
  with grpc.insecure_channel(address) as channel:
    channel.unary_unary(_KEEP_ALIVE)(request, timeout=10)


@pytest.fixture(scope='module')
def address():
  jobs = {'ps': {0: 'localhost:0'}, 'worker': {}}
  return tfps.Server(tfps.Cluster(jobs, tfps.Task('ps', 0))).address


def test_a_server_has_a_context_before_it_has_clients(address):
  keep_alive(address, eager_contexts._FIRST_ID)


def test_a_server_tells_contexts_apart(address):
  with pytest.raises(grpc.RpcError, match='Unable to find a context_id'):
    keep_alive(address, eager_contexts._FIRST_ID + 1)


def test_a_server_that_is_not_there_is_an_error():
  with pytest.raises(grpc.RpcError):
    eager_contexts.open_first(
      'localhost:1', job='ps', index=0, start=lambda: None, timeout_secs=1.0
    )
