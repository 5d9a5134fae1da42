"""Clients are kept from a server until it has its first context."""

import os
import socket

import pytest
import tensorflow as tf

from tfps._utils import ports
from tfps.server import gate as gate_lib

_FIRST_BYTES = b'\0\0'  # of the settings with which a server of gRPC begins


def _told(host, port):
  """What a server tells who connects; None if it says nothing."""
  with socket.create_connection((host, port), timeout=10) as connection:
    connection.settimeout(0.3)
    try:
      return connection.recv(2)
    except TimeoutError:
      return None


def _make(port):
  return tf.distribute.Server(
    {'ps': [f'localhost:{port}']}, job_name='ps', task_index=0, start=False
  )


@pytest.mark.parametrize('host', ['localhost', '127.0.0.1'])
def test_only_the_back_door_leads_to_a_server_before_it_is_ready(host):
  port = ports.pick()
  with gate_lib.Gate(f'{host}:{port}') as gate:
    server = gate.behind(lambda: _make(port))
    back_door = gate.back_door(f'{host}:{port}')
    assert _told('127.0.0.1', port) is None
    assert _told(*back_door.split(':')) == _FIRST_BYTES
    early = socket.create_connection(('127.0.0.1', port), timeout=10)
  with early, pytest.raises(ConnectionResetError):
    early.recv(2)
  assert _told('127.0.0.1', port) == _FIRST_BYTES
  assert 'TF_GRPC_REUSE_PORT' not in os.environ
  del server


def test_a_gate_that_cannot_be_passed_is_opened(monkeypatch):
  monkeypatch.setattr(gate_lib, '_BACK_DOOR', '127.0.0.1')
  monkeypatch.setattr(gate_lib, '_LOOPBACK', ())
  port = ports.pick()
  with gate_lib.Gate(f'127.0.0.2:{port}') as gate:
    # Nothing listens at the back door.
    address = f'127.0.0.2:{port}'
    assert gate.back_door(address) == address
    server = _make(port)
    assert _told('127.0.0.2', port) == _FIRST_BYTES
  del server


def test_a_port_that_is_to_be_chosen_has_no_gate():
  with gate_lib.Gate('localhost:0') as gate:
    assert gate.behind(lambda: os.environ.get('TF_GRPC_REUSE_PORT')) is None
    assert gate.back_door('localhost:7') == 'localhost:7'
