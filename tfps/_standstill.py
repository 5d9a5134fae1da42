"""Has all who share variables stand still while their chief moves some.

The chief calls for it on the ps that stay, the places: it posts a notice there,
asks them who their clients are, and tells each of those. A client that has come
to a halt posts that it stands, on the first place, and waits for the notice to
say that it is over, or is about another one. Each says where the ps are. Nobody
waits for those that are dead.

A client says hello before it connects, and then looks for the notice. So either
the places have heard of it when they are asked, or it waits until it is over.
One that says hello again, as it is mending a loss, may be waited for: then it
must not wait.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import time
import uuid

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

_NOTICE = 'tfps_standstill'
_CLIENTS = 'tfps_clients'
_STANDING = 'tfps_standing_{}'
_WHO = 'who_is_there'
_STAND = 'stand_still'

_CALL_SECS = 5.0
_POLL_SECS = 0.05
_PROBE_EVERY_SECS = 1.0
_COME_SECS = 8.0  # for all to come to a halt
_ACT_SECS = 30.0  # since the call; then it is too late to move anything
_STAND_SECS = 60.0  # how long a client stands for a chief that says nothing
_WAIT_SECS = 5.0  # of who says hello meanwhile

Addresses = Mapping[spec_lib.Task, str]


@dataclasses.dataclass(frozen=True)
class Place:
  """A ps on which a standstill is called.

  Attributes:
    task: the ps.
    address: where it is.
  """

  task: spec_lib.Task
  address: str

  def mailbox(self) -> mailbox_lib.Mailbox:
    """Its own."""
    return mailbox_lib.Mailbox(self.task, self.address, timeout_secs=_CALL_SECS)


@dataclasses.dataclass
class _Notice:
  """What is posted at the place.

  Attributes:
    id: of the standstill.
    addresses: where the ps are, by their names.
    is_over: whether all may go on.
  """

  id: str
  addresses: dict[str, str]
  is_over: bool = False

  def post(self, mailbox: mailbox_lib.Mailbox) -> None:
    mailbox.post(json.dumps(dataclasses.asdict(self)), _NOTICE)

  @classmethod
  def read(cls, mailbox: mailbox_lib.Mailbox) -> '_Notice | None':
    text = mailbox.read(_NOTICE)
    return None if text is None else cls(**json.loads(text))

  def where(self) -> dict[spec_lib.Task, str]:
    """The addresses, by task."""
    parse = spec_lib.Task.parse
    return {parse(name): at for name, at in self.addresses.items()}


# What the chief does.


class Standstill:
  """One that the chief has called, and that all keep.

  Args:
    deadline: when it is too late to move anything.
  """

  def __init__(self, deadline: float | None) -> None:
    self._deadline = deadline

  def check(self) -> None:
    """Makes sure that nobody has gone on without being told.

    Raises:
      errors.DeadlineError: somebody may have.
    """
    if deadlines.is_over(self._deadline):
      raise errors.DeadlineError(
        f'After {_ACT_SECS:g} seconds, it is too late to move anything.'
      )


@contextlib.contextmanager
def called(
  places: Sequence[Place],
  own: spec_lib.Task,
  addresses: Callable[[], Addresses],
) -> Iterator[Standstill]:
  """Within it, all clients but this one stand still.

  Args:
    places: the ps that stay where they are, one at least.
    own: this process' task.
    addresses: where the ps are at the moment.

  Raises:
    errors.DeadlineError: names the clients that have not come to a halt.
    tf.errors.OpError: a place is lost.
  """
  id = uuid.uuid4().hex
  standstill = Standstill(deadlines.after(_ACT_SECS))
  with contextlib.ExitStack() as stack:
    stack.callback(lambda: say_where(places, addresses(), id))
    boxes = [stack.enter_context(place.mailbox()) for place in places]
    for mailbox in boxes:
      _Notice(id, _by_name(addresses())).post(mailbox)
    clients = _clients(boxes, id)
    clients.pop(own, None)
    _tell(clients, places[0], id)
    _wait_for(clients, boxes[0], id)
    yield standstill


def say_where(
  places: Iterable[Place], addresses: Addresses, id: str | None = None
) -> None:
  """Says on ps where all ps are, and that no standstill is on.

  Args:
    places: the ps that have processes of their own.
    addresses: of all ps.
    id: of the standstill that is over.
  """
  over = _Notice(id or uuid.uuid4().hex, _by_name(addresses), is_over=True)
  for place in places:
    try:
      with place.mailbox() as mailbox:
        over.post(mailbox)
    except tf.errors.OpError as error:
      logging.warning('%s: %s', place.task, errors.first_line(error))


def _clients(
  boxes: Sequence[mailbox_lib.Mailbox], id: str
) -> dict[spec_lib.Task, str]:
  """All of whom some place has heard, which each place then posts."""
  found: dict[spec_lib.Task, str] = {}
  for mailbox in boxes:
    mailbox.put(json.dumps({_WHO: id}))
  deadline = deadlines.after(_CALL_SECS)
  for mailbox in boxes:
    while (clients := _posted(mailbox, id)) is None:
      if deadlines.is_over(deadline):
        raise errors.DeadlineError(
          f'After {_CALL_SECS:g} seconds, a ps has not said who its clients '
          'are.'
        )
      time.sleep(_POLL_SECS)
    found |= clients
  for mailbox in boxes:
    _post_clients(mailbox, id, found)
  return found


def _post_clients(
  mailbox: mailbox_lib.Mailbox, id: str, clients: Addresses
) -> None:
  mailbox.post(json.dumps({'id': id, 'clients': _by_name(clients)}), _CLIENTS)


def _posted(
  mailbox: mailbox_lib.Mailbox, id: str
) -> dict[spec_lib.Task, str] | None:
  """The clients that were known when this was called; None before."""
  said = json.loads(mailbox.read(_CLIENTS) or '{}')
  if said.get('id') != id:
    return None
  return {
    spec_lib.Task.parse(name): address
    for name, address in said['clients'].items()
  }


def _tell(clients: Addresses, place: Place, id: str) -> None:
  text = json.dumps(
    {_STAND: id, 'task': str(place.task), 'address': place.address}
  )
  for status in health.probe_all(clients):
    if status.state is health.State.ALIVE:
      client = Place(status.task, status.address)
      try:
        with client.mailbox() as mailbox:
          mailbox.put(text)
      except tf.errors.OpError as error:  # it may just have died
        logging.warning('%s: %s', status.task, errors.first_line(error))


def _wait_for(
  clients: Addresses, mailbox: mailbox_lib.Mailbox, id: str
) -> None:
  deadline = deadlines.after(_COME_SECS)
  waiting = set(clients)
  next_look = time.monotonic()
  while waiting:
    waiting = {c for c in waiting if mailbox.read(_board_of(c)) != id}
    if waiting and time.monotonic() >= next_look:
      next_look = time.monotonic() + _PROBE_EVERY_SECS
      waiting = health.may_be_alive(
        {client: clients[client] for client in waiting}
      )
    if waiting and deadlines.is_over(deadline):
      raise errors.DeadlineError(
        f'After {_COME_SECS:g} seconds, '
        f'{", ".join(map(str, sorted(waiting)))} had not come to a halt.'
      )
    time.sleep(_POLL_SECS)


# What a ps does.


def answer(
  message: str, mailbox: mailbox_lib.Mailbox, clients: Addresses
) -> bool:
  """Whether a message asks a ps for its clients, which then are posted.

  Args:
    message: from its mailbox.
    mailbox: its own.
    clients: those it knows of.
  """
  id = json.loads(message).get(_WHO)
  if id is None:
    return False
  _post_clients(mailbox, id, clients)
  return True


# What clients do.


@dataclasses.dataclass(frozen=True)
class Call:
  """A standstill that this process is to keep.

  Attributes:
    id: of the standstill.
    place: where it was called.
  """

  id: str
  place: Place

  @classmethod
  def of(cls, message: str) -> 'Call | None':
    """That of a message, if it is one."""
    facts = json.loads(message)
    if _STAND not in facts:
      return None
    return cls(
      facts[_STAND],
      Place(spec_lib.Task.parse(facts['task']), facts['address']),
    )

  def keep(
    self, own: spec_lib.Task, chief: spec_lib.Task, address: str
  ) -> dict[spec_lib.Task, str]:
    """Says that this process stands, and returns once all may go on.

    Args:
      own: this process' task.
      chief: who has called.
      address: where its server answers.

    Returns:
      Where the ps are from now on; nothing, if that is not known.
    """
    try:
      with self.place.mailbox() as mailbox:
        if self._is_on(mailbox):
          mailbox.post(self.id, _board_of(own))
        deadline = deadlines.after(_STAND_SECS)
        next_look = time.monotonic()
        while self._is_on(mailbox) and not deadlines.is_over(deadline):
          if time.monotonic() >= next_look:
            next_look = time.monotonic() + _PROBE_EVERY_SECS
            if not health.may_be_alive({chief: address}):
              break
          time.sleep(_POLL_SECS)
        notice = _Notice.read(mailbox)
    except tf.errors.OpError as error:
      logging.warning('%s: %s', self.place.task, errors.first_line(error))
      return {}
    is_known = notice is not None and (notice.is_over or notice.id != self.id)
    return notice.where() if notice is not None and is_known else {}

  def _is_on(self, mailbox: mailbox_lib.Mailbox) -> bool:
    notice = _Notice.read(mailbox)
    return notice is not None and notice.id == self.id and not notice.is_over


def wait_until_over(
  place: spec_lib.Task,
  mailbox: mailbox_lib.Mailbox,
  known: spec_lib.Task | None,
) -> None:
  """To be called by who has said hello, and is about to connect.

  Args:
    place: the ps.
    mailbox: its own.
    known: this process' task, if it has said hello before: it need not wait
      where it is waited for.

  Raises:
    errors.UnreachableError: variables have not been moved in time.
  """
  deadline = deadlines.after(_WAIT_SECS)
  while (notice := _Notice.read(mailbox)) is not None and not notice.is_over:
    if known is not None and known in (_posted(mailbox, notice.id) or ()):
      return
    if deadlines.is_over(deadline):
      raise errors.UnreachableError(
        f'{place}: the chief has been moving variables for {_WAIT_SECS:g} '
        'seconds. Is it alive?'
      )
    time.sleep(_POLL_SECS)


def find(places: Iterable[Place]) -> dict[spec_lib.Task, str]:
  """Where the ps are, according to the last standstill; nothing without one.

  Args:
    places: the ps that may tell.
  """
  for place in places:
    try:
      with place.mailbox() as mailbox:
        if (notice := _Notice.read(mailbox)) is not None:
          return notice.where()
    except tf.errors.OpError as error:
      logging.warning('%s: %s', place.task, errors.first_line(error))
  return {}


def _by_name(addresses: Addresses) -> dict[str, str]:
  return {str(task): address for task, address in addresses.items()}


def _board_of(client: spec_lib.Task) -> str:
  return _STANDING.format(client)
