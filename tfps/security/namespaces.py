"""Network namespaces of programs, made without root.

A program in one sees a loopback interface and nothing else, so that nobody
outside can reach what it listens on. Sockets that were opened on either side
work in the processes that inherit them.

Run as a file, it enters a user and a network namespace, for a command:
`python namespaces.py USER NETWORK COMMAND [ARGUMENT ...]`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys

# From <linux/sched.h>, <linux/mount.h> and <linux/sockios.h>.
_NEWNS = 0x00020000
_NEWUSER = 0x10000000
_NEWNET = 0x40000000
_BIND = 4096
_PRIVATE = (1 << 18) | 16384  # with all below
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_IS_UP = 0x1 | 0x40  # and running
_KINDS = ('uid', 'gid')  # of ids

_libc = ctypes.CDLL(None, use_errno=True)


def enter_new(*, hosts_file: str | None = None) -> None:
  """Puts this process, which has one thread, into namespaces of its own.

  Args:
    hosts_file: takes the place of /etc/hosts, if given.

  Raises:
    OSError: the kernel does not allow it; names the step.
  """
  flags = _NEWUSER | _NEWNET | (_NEWNS if hosts_file else 0)
  own_ids = {'uid': os.getuid(), 'gid': os.getgid()}
  _unshare_with_all_ids(flags)
  _map(own_ids)
  if hosts_file:
    _call('mount', b'none', b'/', None, _PRIVATE, None)
    _call('mount', hosts_file.encode(), b'/etc/hosts', None, _BIND, None)


def _unshare_with_all_ids(flags: int) -> None:
  """Makes namespaces that have all users and groups, if it may.

  Root has access to files of others only where these are mapped, which takes a
  process outside that may do so, as root's may.
  """
  maps = {f'/proc/{os.getpid()}/{kind}_map': _all_ids(kind) for kind in _KINDS}
  is_made, make = os.pipe()
  helper = os.fork()
  if helper == 0:
    try:
      os.close(make)
      if os.read(is_made, 1):
        for path, text in maps.items():
          with contextlib.suppress(OSError):  # it may not
            _write(path, text)
    finally:
      os._exit(0)
  os.close(is_made)
  try:
    _call('unshare', flags)
    os.write(make, b'.')
  finally:
    os.close(make)
    os.waitpid(helper, 0)


def _all_ids(kind: str) -> str:
  """Returns a map that maps all ids of this namespace to themselves."""
  lines = _read(f'/proc/self/{kind}_map').splitlines()
  first_and_number = [line.split()[::2] for line in lines]
  return '\n'.join(f'{first} {first} {n}' for first, n in first_and_number)


def _map(own_ids: Mapping[str, int]) -> None:
  """Maps ids of this process to themselves, by kind, where none are mapped."""
  for kind, number in own_ids.items():
    if not _read(f'/proc/self/{kind}_map'):
      if kind == 'gid':
        _write('/proc/self/setgroups', 'deny')
      _write(f'/proc/self/{kind}_map', f'{number} {number} 1')


def set_up_loopback(hosts: Iterable[str]) -> None:
  """Starts the loopback interface of this namespace.

  Args:
    hosts: addresses that it is to have besides 127.0.0.0/8 and ::1.

  Raises:
    OSError: the kernel does not allow it.
  """
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    flags = struct.pack('16sh14x', b'lo', _IS_UP)
    fcntl.ioctl(control, _SIOCSIFFLAGS, flags)
    own = dict.fromkeys(h for h in hosts if not h.startswith('127.'))
    for number, host in enumerate(h for h in own if ':' not in h):
      address = socket.inet_aton(host)
      request = struct.pack(
        '16sHH4s8x', f'lo:{number}'.encode(), socket.AF_INET, 0, address
      )
      fcntl.ioctl(control, _SIOCSIFADDR, request)
  for host in own:
    if ':' in host and host != '::1':
      _add_ipv6(host)


def _add_ipv6(host: str) -> None:
  """Gives the loopback interface an IPv6 address."""
  with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
    address = socket.inet_pton(socket.AF_INET6, host)
    request = struct.pack('16sIi', address, 128, socket.if_nametoindex('lo'))
    fcntl.ioctl(control, _SIOCSIFADDR, request)


def command_within(pid: int, command: Iterable[str]) -> list[str]:
  """Returns a command that runs another one in a process' namespaces.

  This process keeps them open, so that the command may start after the other
  process has ended.

  Args:
    pid: the process, which belongs to this user and lives.
    command: program and arguments.

  Raises:
    OSError: it does not live.
  """
  kept = [
    os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY) for kind in ('user', 'net')
  ]
  paths = [f'/proc/{os.getpid()}/fd/{number}' for number in kept]
  return [sys.executable, '-I', '-S', __file__, *paths, *command]


def _main(user: str, network: str, command: list[str]) -> None:
  """Enters namespaces, given their files, and becomes the command."""
  with open(user, 'rb') as user_file, open(network, 'rb') as network_file:
    _call('setns', user_file.fileno(), _NEWUSER)
    _call('setns', network_file.fileno(), _NEWNET)
  os.execvp(command[0], command)


def _read(path: str) -> str:
  with open(path) as file:
    return file.read()


def _write(path: str, text: str) -> None:
  with open(path, 'w') as file:
    file.write(text)


def _call(name: str, *args: object) -> None:
  if getattr(_libc, name)(*args):
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), name)


if __name__ == '__main__':
  _main(sys.argv[1], sys.argv[2], sys.argv[3:])
