"""Sends bytes from one host to another and tells how fast they came.

Run as a file, it is the program of either host:
`transfer.py receive ADDRESS` and `transfer.py send ADDRESS NUM_BYTES`.
"""

import json
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from tfps import testing

_PORT = 2222
_DEADLINE_SECS = 60.0
_CHUNK = 1 << 16


def measure(
  network: 'testing.Network', sender: int, receiver: int, num_bytes: int
) -> float:
  """The rate, in Mbit/s, of a TCP connection between two hosts."""
  command = [sys.executable, '-I', '-S', __file__]
  address = network.address(receiver)
  receiving = network.popen(
    receiver, [*command, 'receive', address], stdout=subprocess.PIPE
  )
  network.popen(sender, [*command, 'send', address, str(num_bytes)])
  out, _ = receiving.communicate(timeout=2 * _DEADLINE_SECS)
  result = json.loads(out)
  if result['num_bytes'] != num_bytes:
    raise RuntimeError(f'{result["num_bytes"]} of {num_bytes} bytes came.')
  return 8e-6 * num_bytes / result['secs']


def receive(address: str) -> None:
  """Prints how many bytes came and how long that took."""
  with socket.create_server((address, _PORT)) as server:
    server.settimeout(_DEADLINE_SECS)
    connection, _ = server.accept()
  with connection:
    connection.settimeout(_DEADLINE_SECS)
    num_bytes = len(connection.recv(_CHUNK))
    start = time.perf_counter()
    while chunk := connection.recv(_CHUNK):
      num_bytes += len(chunk)
    secs = time.perf_counter() - start
  print(json.dumps({'num_bytes': num_bytes, 'secs': secs}))


def send(address: str, num_bytes: str) -> None:
  """Sends as soon as the other listens."""
  with _connect(address) as connection:
    connection.sendall(bytes(int(num_bytes)))


def _connect(address: str) -> socket.socket:
  deadline = time.monotonic() + _DEADLINE_SECS
  while True:
    try:
      return socket.create_connection((address, _PORT), _DEADLINE_SECS)
    except ConnectionRefusedError:
      if time.monotonic() > deadline:
        raise
      time.sleep(0.02)


if __name__ == '__main__':
  {'receive': receive, 'send': send}[sys.argv[1]](*sys.argv[2:])
