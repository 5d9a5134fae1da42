"""Hosts of a cluster's tasks: network namespaces, or this machine."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.testing.chaos import network as network_lib

_PORT = 2222  # the same on all hosts of a network


class Hosts:
  """Assigns tasks to hosts.

  Args:
    network: has a host for each task; None if all tasks are on this machine.
  """

  def __init__(self, network: network_lib.Network | None) -> None:
    self._network = network
    self._addresses: list[str] = []
    if network is not None:
      numbers = range(network.num_hosts)
      self._addresses = [f'{network.address(i)}:{_PORT}' for i in numbers]

  def cluster(self, numbers: Mapping[str, int]) -> spec_lib.Cluster:
    """Returns a cluster of so many tasks of each job, one on each host."""
    addresses = self._all_addresses()
    jobs = {
      job: [next(addresses) for _ in range(number)]
      for job, number in numbers.items()
    }
    task = spec_lib.CHIEF if 'chief' in numbers else None
    return spec_lib.Cluster(jobs, task, source='ProcessCluster')

  def _all_addresses(self) -> Iterator[str]:
    """Yields addresses of tasks: one a host, or any number on this machine."""
    yield from self._addresses
    while self._network is None:
      yield f'localhost:{ports.pick()}'

  def within(self, address: str, command: Sequence[str]) -> list[str]:
    """Returns a command that runs another on the host of an address."""
    if self._network is None:
      return list(command)
    return self._network.within(self._number(address), command)

  def cut(self, address: str, other: str | None) -> None:
    """Disconnects an address's host from another's, or from all."""
    self._get().cut(self._number(address), self._other(other))

  def mend(self, address: str, other: str | None) -> None:
    """Undoes `cut`."""
    self._get().mend(self._number(address), self._other(other))

  def traffic(self, address: str) -> network_lib.Traffic:
    """Returns the bytes that an address's host has received and sent."""
    return self._get().traffic(self._number(address))

  def _get(self) -> network_lib.Network:
    if self._network is None:
      raise ValueError(
        'The tasks are not on hosts of their own. Make the ProcessCluster with '
        'on_hosts=True.'
      )
    return self._network

  def _number(self, address: str) -> int:
    self._get()
    return self._addresses.index(address)

  def _other(self, address: str | None) -> int | None:
    return None if address is None else self._number(address)
