"""The tasks of a cluster on hosts of their own, or all on this one."""

from collections.abc import Iterator
from collections.abc import Sequence

from tfps._utils import ports
from tfps.testing.chaos import network as network_lib

_PORT = 2222  # on a host of its own


class Hosts:
  """Where tasks are.

  Args:
    network: with a host for each task; None if all are on this host.
  """

  def __init__(self, network: network_lib.Network | None) -> None:
    self._network = network
    self._addresses: list[str] = []
    if network is not None:
      numbers = range(network.num_hosts)
      self._addresses = [f'{network.address(i)}:{_PORT}' for i in numbers]

  def addresses(self) -> Iterator[str]:
    """An address for each of as many tasks as there are."""
    yield from self._addresses
    while self._network is None:
      yield f'localhost:{ports.pick()}'

  def within(self, address: str, command: Sequence[str]) -> list[str]:
    """A command that is executed on the host of the task at an address."""
    if self._network is None:
      return list(command)
    return self._network.within(self._number(address), command)

  def cut(self, address: str, other: str | None) -> None:
    """Cuts a task off from the one at another address, or from all."""
    self._get().cut(self._number(address), self._other(other))

  def mend(self, address: str, other: str | None) -> None:
    """Undoes `cut`."""
    self._get().mend(self._number(address), self._other(other))

  def traffic(self, address: str) -> network_lib.Traffic:
    """What the interface of a task's host has counted so far."""
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
