"""What processes use: bytes over TCP, CPU time, and memory at its peak.

Linux counts the bytes of each connection; its socket diagnostics tell them to
anyone, so that neither side of a comparison has to count for itself.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import os
import pathlib
import socket
import struct

import psutil

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_DONE = 3
_NLMSG_ERROR = 2
_INET_DIAG_INFO = 2
_NLMSG_HEADER = struct.Struct('=IHHII')
_ATTRIBUTE_HEADER = struct.Struct('=HH')
_DIAG_MESSAGE_LENGTH = 72
# In struct tcp_info of linux/tcp.h.
_BYTES_ACKED = 120
_BYTES_RECEIVED = 128


def peak_megabytes(pid: int) -> float:
  """The most memory that a process has had resident so far."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  (line,) = (x for x in status.splitlines() if x.startswith('VmHWM:'))
  return int(line.split()[1]) * 1024 / 1e6


def megabytes(pid: int) -> float:
  """The memory that a process has resident."""
  resident: int = psutil.Process(pid).memory_info().rss
  return resident / 1e6


def cpu_secs(pid: int) -> float:
  """The CPU time that a process has used so far."""
  stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  user, system = stat.rpartition(')')[2].split()[11:13]
  return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def tree_cpu_secs(pids: Iterable[int]) -> float:
  """The CPU time of processes, and of all that they have started, so far.

  What has ended meanwhile counts as part of the process that waited for it.
  """
  trees: dict[int, psutil.Process] = {}
  for pid in pids:
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
      trees[process.pid] = process
  secs = 0.0
  for process in trees.values():
    with contextlib.suppress(psutil.NoSuchProcess):
      times = process.cpu_times()
      secs += times.user + times.system
      secs += times.children_user + times.children_system
  return secs


def bytes_at_ports(ports: Collection[int]) -> int:
  """The bytes, both ways, of all open connections that ports accepted."""
  return sum(
    num_bytes
    for family in (socket.AF_INET, socket.AF_INET6)
    for port, num_bytes in _connections(family)
    if port in ports
  )


def _connections(family: int) -> Iterator[tuple[int, int]]:
  """The local port of each TCP connection, and its bytes both ways."""
  for message in _dump(family):
    (port,) = struct.unpack_from('!H', message, 4)
    info = dict(_attributes(message)).get(_INET_DIAG_INFO)
    if info is not None and len(info) >= _BYTES_RECEIVED + 8:
      yield (
        port,
        sum(
          struct.unpack_from('=Q', info, offset)[0]
          for offset in (_BYTES_ACKED, _BYTES_RECEIVED)
        ),
      )


def _dump(family: int) -> Iterator[bytes]:
  """The kernel's messages on all TCP sockets of a family."""
  request = struct.pack(
    '=BBBxI48x',
    family,
    socket.IPPROTO_TCP,
    1 << (_INET_DIAG_INFO - 1),
    0xFFFFFFFF,  # in any state
  )
  header = _NLMSG_HEADER.pack(
    _NLMSG_HEADER.size + len(request),
    _SOCK_DIAG_BY_FAMILY,
    _NLM_F_REQUEST_DUMP,
    0,
    0,
  )
  with socket.socket(
    socket.AF_NETLINK, socket.SOCK_RAW, getattr(socket, 'NETLINK_SOCK_DIAG', 4)
  ) as netlink:
    netlink.settimeout(10.0)
    netlink.send(header + request)
    while True:
      for kind, message in _messages(netlink.recv(1 << 18)):
        if kind == _NLMSG_DONE:
          return
        if kind == _NLMSG_ERROR:
          raise OSError('The kernel does not tell about its TCP sockets.')
        yield message


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
  while data:
    length, kind, *_ = _NLMSG_HEADER.unpack_from(data)
    yield kind, data[_NLMSG_HEADER.size : length]
    data = data[_aligned(length) :]


def _attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
  data = message[_DIAG_MESSAGE_LENGTH:]
  while len(data) >= _ATTRIBUTE_HEADER.size:
    length, kind = _ATTRIBUTE_HEADER.unpack_from(data)
    yield kind, data[_ATTRIBUTE_HEADER.size : length]
    data = data[_aligned(length) :]


def _aligned(length: int) -> int:
  return (length + 3) // 4 * 4
