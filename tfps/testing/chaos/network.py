"""Networks of hosts (network namespaces) on links of a given rate.

```
with Network(num_hosts=2, mbit_per_sec=100) as network:
  server = network.popen(0, ['python', 'server.py', network.address(0)])
  client = network.popen(1, ['python', 'client.py', network.address(0)])
  client.wait()
  print(network.traffic(0))
```

Each host has one interface, and a bridge connects them. The bridge is in a
namespace of its own, so that the network is isolated from this machine's and
changes nothing of it. `tc tbf` limits the rates of both directions.

Namespaces have no names: each is held by a process that dies with this one, and
the kernel removes it with its last process. So nothing remains even if this
process is killed. To look into one:
`nsenter --net=/proc/PID/ns/net ip address`.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import time
from typing import IO

from tfps._utils import processes
from tfps._utils import timeouts
from tfps.testing.chaos import rights

_COMMANDS = ('ip', 'tc', 'unshare', 'nsenter', 'sleep')
_TRIAL = (
  'ip link add bridge type bridge && ip link add one type veth peer name two '
  '&& tc qdisc add dev one root tbf rate 1mbit burst 128kb latency 50ms'
)
_MOST_HOSTS = 250
# The burst is more than the 64 KB that TCP passes to the interface at once, and
# little compared to transfers of megabytes.
_SHAPED = 'burst 128kb latency 50ms'
_UNUSED_MAC = '02:00:00:00:00:ff'  # a hardware address that no interface has


def problem() -> str:
  """Returns why this machine cannot make networks; empty if it can."""
  return rights.problem(
    takes_root='Network namespaces require root.',
    commands=_COMMANDS,
    packages='iproute2 and util-linux',
    trial=['unshare', '--net', 'sh', '-c', _TRIAL],
    refuses='This machine allows no such network',
  )


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes that an interface has transferred, including headers.

  Attributes:
    received: bytes received.
    sent: bytes sent.
  """

  received: int
  sent: int

  def __sub__(self, earlier: 'Traffic') -> 'Traffic':
    return Traffic(self.received - earlier.received, self.sent - earlier.sent)


class Network:
  """Connects hosts by links of a given rate; a context manager.

  Leaving kills all processes that `popen` started on the hosts.

  Args:
    num_hosts: number of hosts, 1 to 250.
    mbit_per_sec: the rate of each host's link in each direction; None for no
      limit.

  Raises:
    ValueError: an argument is out of its range.
    RuntimeError: on entering; this machine cannot make networks, see `problem`.
  """

  def __init__(self, num_hosts: int, mbit_per_sec: float | None = None) -> None:
    if not 1 <= num_hosts <= _MOST_HOSTS:
      raise ValueError(
        f'Network: num_hosts is {num_hosts}. Give 1 to {_MOST_HOSTS}.'
      )
    if mbit_per_sec is not None and not mbit_per_sec > 0:
      raise ValueError(
        f'Network: mbit_per_sec is {mbit_per_sec}. Give more than 0, or None.'
      )
    self.num_hosts = num_hosts
    self.mbit_per_sec = mbit_per_sec
    self._stack = contextlib.ExitStack()
    self._holders: list[int] = []
    self._bridge = 0

  def __enter__(self) -> 'Network':
    reason = problem()
    if reason:
      raise RuntimeError(reason)
    try:
      self._holders = [self._hold() for _ in range(self.num_hosts)]
      self._join(self._hold())
    except BaseException:
      self.stop()
      raise
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.stop()

  def stop(self) -> None:
    """Kills all processes of the hosts and removes them; twice is harmless."""
    self._stack.close()
    self._holders = []

  def address(self, host: int) -> str:
    """Returns the IP address of a host.

    Args:
      host: its number, from 0.

    Raises:
      ValueError: there is no such host.
    """
    self._check(host)
    return _address(host)

  def popen(
    self,
    host: int,
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    stdout: int | IO[bytes] = 1,
    stderr: int | IO[bytes] = 2,
    cwd: str | os.PathLike[str] | None = None,
  ) -> subprocess.Popen[bytes]:
    """Starts a command on a host; it dies with this process.

    Args:
      host: the host's number, from 0 upwards.
      command: program and arguments.
      env: variables to add to this process' environment.
      stdout: receives its output, as for `subprocess.Popen`; by default this
        process' stdout.
      stderr: receives its errors; by default this process' stderr.
      cwd: its working directory.

    Returns:
      The process.

    Raises:
      ValueError: there is no such host.
      RuntimeError: the network was not entered.
    """
    return self._spawn(
      self.within(host, command),
      {**os.environ, **(env or {})},
      stdout=stdout,
      stderr=stderr,
      cwd=cwd,
    )

  def within(self, host: int, command: Sequence[str]) -> list[str]:
    """Returns the command that runs a command on a host.

    Args:
      host: the host's number.
      command: program and arguments.

    Raises:
      ValueError: there is no such host.
      RuntimeError: the network was not entered.
    """
    return [*_within(self._holder(host)), *command]

  def cut(self, host: int, other: int | None = None) -> None:
    """Drops all packets between a host and another, or all others.

    Neither side gets an error: packets are lost. Cutting again is harmless.

    Args:
      host: the host's number.
      other: the other host's number; None for all others.

    Raises:
      ValueError: there is no such host.
      RuntimeError: the network was not entered, or `ip` fails.
    """
    if other is None:
      _run(self._bridge, 'ip', [f'link set {_port(host)} nomaster'])
    else:
      self._misdirect(host, other)
      self._misdirect(other, host)

  def mend(self, host: int, other: int | None = None) -> None:
    """Undoes `cut`; harmless if nothing is cut.

    Args:
      host: as for `cut`.
      other: as for `cut`.
    """
    if other is None:
      _run(self._bridge, 'ip', [f'link set {_port(host)} master bridge'])
    else:
      self._direct(host, other)
      self._direct(other, host)

  def traffic(self, host: int) -> Traffic:
    """Returns the bytes that a host has received and sent so far.

    Args:
      host: its number, from 0.

    Raises:
      ValueError: there is no such host.
      RuntimeError: the network was not entered.
    """
    table = pathlib.Path(f'/proc/{self._holder(host)}/net/dev').read_text()
    (line,) = (x for x in table.splitlines() if x.lstrip().startswith('eth0:'))
    counters = line.partition(':')[2].split()
    return Traffic(received=int(counters[0]), sent=int(counters[8]))

  def _holder(self, host: int) -> int:
    self._check(host)
    if not self._holders:
      raise RuntimeError('Network: there are hosts only within its context.')
    return self._holders[host]

  def _check(self, host: int) -> None:
    if not 0 <= host < self.num_hosts:
      raise ValueError(
        f'Network: there is no host {host}. There are {self.num_hosts}, from 0.'
      )

  def _hold(self) -> int:
    """Makes a namespace; returns the id of the process that holds it."""
    holder = self._spawn(
      ['unshare', '--net', 'sleep', 'infinity'],
      dict(os.environ),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + timeouts.current().command_secs
    while not _has_namespace(holder.pid):
      if holder.poll() is not None or time.monotonic() > deadline:
        raise RuntimeError('unshare --net made no network namespace.')
      time.sleep(timeouts.current().short_poll_secs)
    return holder.pid

  def _spawn(
    self,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    cwd: str | os.PathLike[str] | None = None,
  ) -> subprocess.Popen[bytes]:
    process = processes.spawn(
      command, env=env, stdout=stdout, stderr=stderr, cwd=cwd
    )
    self._stack.callback(processes.kill, process)
    return process

  def _misdirect(self, host: int, other: int) -> None:
    """Makes a host send packets for another to an unused MAC address."""
    entry = f'{_address(other)} dev eth0 lladdr {_UNUSED_MAC} nud permanent'
    _run(self._holder(host), 'ip', [f'neigh replace {entry}'])

  def _direct(self, host: int, other: int) -> None:
    self._check(other)
    entry = f'{_address(other)} dev eth0'
    # There may be no entry, or one that the kernel has learned.
    with contextlib.suppress(RuntimeError):
      _run(self._holder(host), 'ip', [f'neigh del {entry}'])

  def _join(self, bridge: int) -> None:
    """Connects the hosts by a bridge, and limits their rates."""
    self._bridge = bridge
    links = ['link add bridge type bridge forward_delay 0 mcast_snooping 0']
    ports = ['bridge']
    for host, holder in enumerate(self._holders):
      port = _port(host)
      links.append(f'link add {port} type veth peer name eth0 netns {holder}')
      links.append(f'link set {port} master bridge')
      ports.append(port)
    _run(bridge, 'ip', [*links, *(line for p in ports for line in _up(p))])
    for host, holder in enumerate(self._holders):
      address = f'address add {_address(host)}/24 dev eth0'
      _run(holder, 'ip', ['link set lo up', address, *_up('eth0')])
      self._limit(holder, ['eth0'])
    self._limit(bridge, ports[1:])

  def _limit(self, holder: int, interfaces: Sequence[str]) -> None:
    """Limits the rate at which interfaces send."""
    if self.mbit_per_sec is not None:
      bits_per_sec = round(self.mbit_per_sec * 1e6)
      limit = f'root tbf rate {bits_per_sec}bit {_SHAPED}'
      _run(holder, 'tc', [f'qdisc add dev {i} {limit}' for i in interfaces])


def _address(host: int) -> str:
  return f'10.18.0.{host + 1}'


def _port(host: int) -> str:
  """Returns the name of the bridge's end of a host's link."""
  return f'host{host}'


def _up(interface: str) -> list[str]:
  # IPv6 is off because its announcements would be counted as traffic.
  return [
    f'link set {interface} addrgenmode none',
    f'link set {interface} up',
  ]


def _has_namespace(pid: int) -> bool:
  """Returns whether a process has another network namespace than this one."""
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    return os.readlink(f'/proc/{pid}/ns/net') != os.readlink(
      '/proc/self/ns/net'
    )
  return False


def _within(holder: int) -> list[str]:
  return ['nsenter', f'--net=/proc/{holder}/ns/net', '--']


def _run(holder: int, tool: str, lines: Sequence[str]) -> None:
  """Runs lines of commands to `ip` or `tc` in a namespace."""
  done = subprocess.run(
    [*_within(holder), tool, '-batch', '-'],
    input='\n'.join(lines) + '\n',
    capture_output=True,
    text=True,
    timeout=timeouts.current().command_secs,
  )
  if done.returncode:
    raise RuntimeError(f'{tool} failed: {done.stderr.strip()}')
