import socket
import subprocess
import sys

from tfps._utils import ports as ports_lib


def test_ports_are_free_distinct_and_not_those_of_outgoing_connections():
  picked = [ports_lib.pick() for _ in range(50)]
  assert len(set(picked)) == 50
  for port in picked:
    assert port < 32_768
    socket.create_server(('', port)).close()


_PICK = """
import sys
from tfps._utils import ports

ports._RANGE = [int(port) for port in sys.argv[1:]]
print([ports.pick() for _ in range(20)])
"""


def _picked_elsewhere(ports):
  """What another process picks that may have these alone, if any."""
  found = subprocess.check_output(
    [sys.executable, '-c', _PICK, *map(str, ports)], text=True
  )
  return set(map(int, found.strip('[]\n').split(', ')))


def test_processes_that_live_do_not_pick_the_same():
  own = [ports_lib.pick() for _ in range(5)]
  assert not _picked_elsewhere(own) & set(own)
  others = ports_lib._RANGE[:5]
  elsewhere = _picked_elsewhere(others) & set(others)
  assert elsewhere
  assert all(ports_lib._claim(port) for port in elsewhere)  # it has ended
