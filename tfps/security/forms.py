"""Forms of an enclosure: how a program is cut off from the network.

`preload` has the form for machines that allow no namespaces.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
import socket
import tempfile

from tfps.security import doors as doors_lib
from tfps.security import namespaces


class Form:
  """Base class of forms: how a program is cut off, and what leads to it."""

  def env(self, env: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that the program needs besides its own.

    Args:
      env: its own.
    """
    raise NotImplementedError

  def enter(self) -> list[socket.socket]:
    """Cuts this process, which becomes the program, off.

    Returns:
      Sockets that listen where the program looks for its peers, in the order of
      the plan.

    Raises:
      NotAllowedError: this machine does not allow the form.
      OSError: a socket cannot be made.
      ValueError: an address is in use.
    """
    raise NotImplementedError

  def target(self, place: doors_lib.Place) -> str:
    """Returns where a proxy reaches a port of the program; see `proxy.Door`.

    Args:
      place: one that the program serves.
    """
    raise NotImplementedError

  def command_within(self, pid: int, command: Sequence[str]) -> list[str]:
    """Returns a command by which a proxy runs where it reaches the program.

    Args:
      pid: the program's process.
      command: of the proxy.
    """
    del pid
    return list(command)


class NotAllowedError(ValueError):
  """Raised where a machine does not allow a form of enclosures."""


class Namespaces(Form):
  """Form of an enclosure whose program has namespaces of its own.

  Args:
    plan: the doors.
  """

  def __init__(self, plan: doors_lib.Plan) -> None:
    self._plan = plan

  def env(self, env: Mapping[str, str]) -> dict[str, str]:
    del env
    return self._plan.env()

  def enter(self) -> list[socket.socket]:
    try:
      self._enter_new()
    except OSError as error:
      raise NotAllowedError(
        'This machine does not let this user make network namespaces: '
        f'{error}. Allow it: sysctl user.max_user_namespaces above 0, and '
        'where they exist kernel.unprivileged_userns_clone=1 and '
        'kernel.apparmor_restrict_unprivileged_userns=0. In a container, its '
        'seccomp profile has to allow unshare and setns.'
      ) from error
    return [place.listen(outside=False) for place in self._plan.peers.values()]

  def target(self, place: doors_lib.Place) -> str:
    ip = doors_lib.ALL_INTERFACES.get(place.ip, place.ip)
    return doors_lib.address(ip, place.port)

  def command_within(self, pid: int, command: Sequence[str]) -> list[str]:
    return namespaces.command_within(pid, command)

  def _enter_new(self) -> None:
    if lines := self._plan.hosts():
      with tempfile.NamedTemporaryFile('w', prefix='tfps-hosts-') as file:
        # Of two lines for a name, the first one goes.
        file.write(f'{lines}{pathlib.Path("/etc/hosts").read_text()}')
        file.flush()
        namespaces.enter_new(hosts_file=file.name)
    else:
      namespaces.enter_new()
    places = [*self._plan.served, *self._plan.peers.values()]
    hosts = [place.ip for place in places]
    namespaces.set_up_loopback(
      host for host in hosts if host not in doors_lib.ALL_INTERFACES
    )
