import socket

import pytest

from tfps.cluster import topology


@pytest.mark.parametrize('address', ['localhost:1', '127.0.0.1:22'])
def test_on_this_machine_it_is_localhost(address):
  assert topology.own_host_towards(address) == 'localhost'


def test_it_is_an_address_of_this_machine():
  # An address for documentation: nobody is there, and nothing is sent.
  try:
    host = topology.own_host_towards('192.0.2.1:2222')
  except OSError:
    pytest.skip('this machine has no route to other networks')
  with socket.create_server((host, 0)) as server:
    assert server.getsockname()[0] == host
