import socket

from tfps import _ports


def test_ports_are_free_distinct_and_not_those_of_outgoing_connections():
  picked = [_ports.pick() for _ in range(50)]
  assert len(set(picked)) == 50
  for port in picked:
    assert port < 32_768
    socket.create_server(('', port)).close()
