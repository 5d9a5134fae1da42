"""Enclosure of a task: a program that only mutual TLS reaches.

TensorFlow's servers listen on every interface and let everybody in. So the
program of a task runs in a network namespace of its own, where it sees the
addresses of its cluster as they are, and nothing else:

  outside: own address   --TLS--> [proxy, within]  -> the program's port
  within:  peer's address ------> [proxy, outside] --TLS--> the peer's address

Both proxies use sockets that they inherit, which are the only ways between the
two sides. Where namespaces are not allowed, a preloaded library makes Unix
sockets of the program's ports and of its connections to peers; see `preload`.
Program and proxies end with this process, however it ends.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import os
import select
import signal
import socket
import sys
import tempfile

from tfps._utils import die_with_parent
from tfps._utils import signals
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.security import config
from tfps.security import doors as doors_lib
from tfps.security import forms
from tfps.security import peer_hosts
from tfps.security import preload
from tfps.security import proxy
from tfps.security import renewal

VARIABLE = 'TFPS_ENCLOSED'  # set for programs in an enclosure

# Says how to enclose programs, one of `FORMS`; by default the first of them
# that this machine allows.
FORM_VARIABLE = 'TFPS_ENCLOSURE'
FORMS = ('namespaces', 'preload')

_MAX_SOCKETS = 200  # in a message; the kernel takes 253
_NOT_ALLOWED = b'not allowed: '
_PROXY_LOST = 128 + signal.SIGKILL


def is_within(env: Mapping[str, str] = os.environ) -> bool:
  """Returns whether this process is in an enclosure.

  Args:
    env: its environment.
  """
  return VARIABLE in env


def run(
  command: Sequence[str],
  cluster: spec_lib.Cluster,
  security: config.Security,
  env: Mapping[str, str],
  form: str = '',
) -> int:
  """Runs a program in an enclosure to its end.

  SIGTERM is passed on to the program. Call it from the main thread of a process
  that has no other.

  Args:
    command: the program and its arguments.
    cluster: the cluster; its task, if it has an address, is served.
    security: the task's credentials.
    env: the program's environment.
    form: one of `FORMS`; by default what `FORM_VARIABLE` says, else the first
      that this machine allows.

  Returns:
    The program's exit status, 128 + n if signal n has ended it, or 137 if a
    proxy was lost, without which the program is cut off.

  Raises:
    ValueError: credentials, addresses or the form are wrong, or this machine
      allows no form or has no proxy.
  """
  form = _checked_form(form, env)
  proxy.check_installed()
  served = cluster.task if cluster.task in cluster.tasks() else None
  security.check(served)
  plan = doors_lib.Plan.of(cluster, env)
  own = {VARIABLE: '1', signals.REPEATS_VARIABLE: '1'}
  ins = [place.listen(outside=True) for place in plan.served]
  with contextlib.ExitStack() as stack:
    program = _start(command, {**env, **own}, plan, form, stack)
    stack.callback(program.kill)
    return _supervise(program, plan, renewal.Renewal(security, served), ins)


def _checked_form(form: str, env: Mapping[str, str]) -> str:
  given = form or env.get(FORM_VARIABLE, '')
  if given and given not in FORMS:
    source = '--form' if form else FORM_VARIABLE
    raise ValueError(
      f'{source} is {given!r}. Give {" or ".join(FORMS)}, or nothing for the '
      'first that this machine allows.'
    )
  return given


def _start(
  command: Sequence[str],
  env: Mapping[str, str],
  plan: doors_lib.Plan,
  form: str,
  stack: contextlib.ExitStack,
) -> '_Program':
  """Starts a program, cut off in a form that this machine allows."""
  reason = ''
  if form != 'preload':
    try:
      return _Program(command, env, len(plan.peers), forms.Namespaces(plan))
    except forms.NotAllowedError as error:
      if form:
        raise
      reason = str(error)
  folder = stack.enter_context(tempfile.TemporaryDirectory(prefix='tfps-'))
  try:
    preloaded = preload.Preloaded(plan, folder)
  except ValueError as error:
    raise ValueError(
      f'{reason or "This is the only form asked for."} Doors cannot be '
      f'preloaded: {error}'
    ) from error
  if reason:
    print(f'tfps enclose: doors are preloaded. {reason}', file=sys.stderr)
  return _Program(command, env, len(plan.peers), preloaded)


@contextlib.contextmanager
def called_through(
  addresses: Mapping[spec_lib.Task, str], security: config.Security | None
) -> Iterator[Mapping[spec_lib.Task, str]]:
  """Lets this process, which is in no enclosure, call enclosed tasks.

  Its credentials are renewed as those of a task are.

  Args:
    addresses: the addresses of the tasks.
    security: credentials of any task of the job; None if it has no TLS.

  Yields:
    For each task an address for gRPC, that of a Unix socket which only this
    user may open; the addresses as given if there is nothing to secure.

  Raises:
    ValueError: as for `run`, or the proxy does not start.
  """
  if security is None or not addresses:
    yield addresses
    return
  proxy.check_installed()
  security.check(None)
  with tempfile.TemporaryDirectory(prefix='tfps-doors-') as scratch:
    doors = [
      proxy.Door(str(task), f'{scratch}/{task.job}-{task.index}', address, task)
      for task, address in addresses.items()
    ]
    credentials = renewal.Renewal(security, None)
    process = proxy.start(doors, security)
    renewing = threads.Periodic(
      'tfps-renewal',
      timeouts.current().credentials_every_secs,
      lambda: credentials.renew([process]),
    )
    renewing.start()
    try:
      try:
        process.wait()
      except OSError as error:
        raise ValueError(
          f'haproxy does not start, and may say why above: {error}.'
        ) from error
      yield {door.peer: f'unix:{door.listener}' for door in doors if door.peer}
    finally:
      renewing.stop()
      process.kill()


class _Program:
  """The program's process, which waits, cut off, to be released.

  Args:
    command: the program and its arguments.
    env: the program's environment, without what the form adds.
    num_peers: number of doors that lead out.
    form: cuts it off.

  Attributes:
    form: as given.
    pid: of the process.
    doors: sockets that listen at the peers' addresses there.

  Raises:
    forms.NotAllowedError: this machine does not allow the form.
    ValueError: a door cannot be opened.
  """

  def __init__(
    self,
    command: Sequence[str],
    env: Mapping[str, str],
    num_peers: int,
    form: forms.Form,
  ) -> None:
    self.form = form
    self._ours, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    parent = os.getpid()
    self._status: int | None = None
    self.pid = os.fork()
    if self.pid == 0:
      self._ours.close()
      full_env = {**env, **form.env(env)}
      _become(command, full_env, form, control=theirs, parent=parent)
    theirs.close()
    self.doors = self._received(num_peers)

  def _received(self, number: int) -> list[int]:
    """Returns the sockets that the process has opened within."""
    found: list[int] = []
    while True:
      data, sockets, _, _ = socket.recv_fds(self._ours, 4096, _MAX_SOCKETS)
      found += sockets
      if data != b'more':
        break
    if data != b'ready' or len(found) != number:
      self.kill()
      if data.startswith(_NOT_ALLOWED):
        raise forms.NotAllowedError(data.removeprefix(_NOT_ALLOWED).decode())
      raise ValueError(data.decode() or 'The enclosure has ended.')
    return found

  def release(self) -> None:
    """Lets the process become the program."""
    self._ours.send(b'go')
    self._ours.close()

  def signal(self, number: signal.Signals) -> None:
    """Sends a signal to the process, unless it has ended."""
    if self._status is None:
      os.kill(self.pid, number)

  def wait(self) -> int:
    """Returns the exit status, as a shell reports it, once it has ended."""
    if self._status is None:
      _, status = os.waitpid(self.pid, 0)
      code = os.waitstatus_to_exitcode(status)
      self._status = code if code >= 0 else 128 - code
    return self._status

  def kill(self) -> None:
    """Kills the process, unless it has ended."""
    self.signal(signal.SIGKILL)
    self.wait()


def _become(
  command: Sequence[str],
  env: Mapping[str, str],
  form: forms.Form,
  *,
  control: socket.socket,
  parent: int,
) -> None:
  """Cuts this process off, opens its doors, and becomes the program."""
  try:
    die_with_parent.tie(parent)
    listeners = form.enter()
    for first in range(0, len(listeners), _MAX_SOCKETS):
      part = listeners[first : first + _MAX_SOCKETS]
      socket.send_fds(control, [b'more'], [each.fileno() for each in part])
    control.send(b'ready')
    for listener in listeners:
      listener.close()
    if control.recv(2):
      die_with_parent.tie(parent)  # the namespaces may have undone it
      die_with_parent.become(command, env)
  except forms.NotAllowedError as error:
    control.send(_NOT_ALLOWED + str(error).encode())
  except (OSError, ValueError) as error:
    with contextlib.suppress(OSError):
      control.send(str(error).encode())
    print(f'tfps enclose: {command[0]}: {error}', file=sys.stderr, flush=True)
  finally:
    os._exit(1)


def _supervise(
  program: _Program,
  plan: doors_lib.Plan,
  credentials: renewal.Renewal,
  ins: Sequence[socket.socket],
) -> int:
  """Starts the proxies, releases the program, and waits for its end."""
  proxies: list[proxy.Proxy] = []
  security = credentials.security
  hosts = peer_hosts.PeerHosts(plan)
  times = timeouts.current()
  renewing = threads.Periodic(
    'tfps-renewal',
    times.credentials_every_secs,
    lambda: credentials.renew(proxies),
  )
  following = threads.Periodic(
    'tfps-hosts', times.probe_every_secs, lambda: hosts.follow(proxies[0])
  )
  with signals.reported(
    (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    lambda number: _pass_on(program, number),
  ):
    try:
      if plan.peers:
        doors = [
          proxy.Door(place.name, door, hosts.target(place), task)
          for door, (task, place) in zip(
            program.doors, plan.peers.items(), strict=True
          )
        ]
        proxies.append(proxy.start(doors, security))
      if plan.served:
        doors = [
          proxy.Door(p.name, s.fileno(), program.form.target(p))
          for p, s in zip(plan.served, ins, strict=True)
        ]
        wrap = functools.partial(program.form.command_within, program.pid)
        proxies.append(proxy.start(doors, security, wrap=wrap))
      for number in [*program.doors, *(s.detach() for s in ins)]:
        os.close(number)
      program.release()
      renewing.start()
      if hosts.are_named:
        following.start()
      return _wait(program, proxies)
    finally:
      renewing.stop()
      following.stop()
      for each in proxies:
        each.kill()


def _pass_on(program: _Program, number: signal.Signals) -> None:
  # A terminal sends the others to the program, too.
  if number == signal.SIGTERM:
    program.signal(number)


def _wait(program: _Program, proxies: Sequence[proxy.Proxy]) -> int:
  """Waits until the program ends, or a proxy does, and so cuts it off."""
  pids = [program.pid, *(process.pid for process in proxies)]
  ends = {os.pidfd_open(pid): pid for pid in pids}
  poll = select.poll()
  for end in ends:
    poll.register(end, select.POLLIN)
  wake_secs = timeouts.current().wake_secs
  while not (found := poll.poll(1000 * wake_secs)):
    pass  # but for what signals do
  ended = {ends[end] for end, _ in found}
  for end in ends:
    os.close(end)
  if program.pid in ended:
    return program.wait()
  print(
    'tfps enclose: haproxy, through which the program communicates, has ended. '
    'Ending the program.',
    file=sys.stderr,
    flush=True,
  )
  program.kill()
  return _PROXY_LOST
