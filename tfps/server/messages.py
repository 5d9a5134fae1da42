"""Messages that tasks put into each other's mailboxes.

A mailbox holds texts: JSON with a kind, the version of that kind, and what the
kind says. So a task with another version of this package is not misread.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import json
from typing import Any
from typing import ClassVar

from absl import logging

from tfps.cluster import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Message:
  """Message of any kind, which is the name of a subclass."""

  VERSION: ClassVar[int] = 1

  def to_json(self) -> str:
    """Returns the text that `parse` understands."""
    said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    head = {'kind': type(self).__name__, 'version': self.VERSION}
    return json.dumps(head | said, default=str)


@dataclasses.dataclass(frozen=True)
class Hello(Message):
  """Notice to a server that a client begins to compute with it.

  Attributes:
    task: the client.
    address: where the client's own server answers probes, as 'host:port'.
    chief: whether training is done when this client is.
    listens: whether the client receives requests (`control_messages`).
  """

  task: spec_lib.Task
  address: str
  chief: bool
  listens: bool = False


@dataclasses.dataclass(frozen=True)
class Done(Message):
  """Notice to a server that a client needs it no more; see `Hello`."""

  task: spec_lib.Task
  address: str
  chief: bool


@dataclasses.dataclass(frozen=True)
class Leaving(Message):
  """Request to a client to release a server that was told to end.

  Attributes:
    task: of the server.
    address: where it listens, for the answer.
  """

  task: spec_lib.Task
  address: str


@dataclasses.dataclass(frozen=True)
class MayLeave(Message):
  """Answer to `Leaving`.

  Attributes:
    client: that does without the server from now on.
  """

  client: spec_lib.Task


@dataclasses.dataclass(frozen=True)
class Joining(Message):
  """Request to admit a worker, which a server forwards to its clients.

  Attributes:
    task: the worker.
    address: where its server listens.
  """

  task: spec_lib.Task
  address: str


@dataclasses.dataclass(frozen=True)
class Host(Message):
  """Request to a ps to serve another one, too.

  Attributes:
    task: the one that is lost.
  """

  task: spec_lib.Task


@dataclasses.dataclass(frozen=True)
class Observe(Message):
  """Request to tell what a process does; see `observation`.

  Attributes:
    number: of the request, which its answer has, too.
    has_stacks: whether the answer is to have the stacks of all threads.
  """

  number: int
  has_stacks: bool


KINDS: Mapping[str, type[Message]] = {
  kind.__name__: kind
  for kind in (Hello, Done, Leaving, MayLeave, Joining, Host, Observe)
}
_ADVICE = 'Run the same version of tfps in all tasks.'
_MAX_QUOTED = 200  # characters

Handlers = Mapping[type[Message], Callable[[Any], object]]


def parse(text: str) -> Message:
  """Returns the message that a text is.

  Args:
    text: as `Message.to_json` gives it.

  Raises:
    ValueError: this version of the package does not know such a message, or
      it lacks something; says what.
  """
  said = _facts(text)
  name, version = said.pop('kind', None), said.pop('version', None)
  kind = KINDS.get(str(name))
  if kind is None or version != kind.VERSION:
    known = ', '.join(f'{k} {v.VERSION}' for k, v in KINDS.items())
    raise ValueError(
      f'A message of kind {name!r} in version {version!r} is not known here, '
      f'where they are {known}. {_ADVICE}'
    )
  types = {field.name: field.type for field in dataclasses.fields(kind)}
  right = {
    field
    for field in types.keys() & said.keys()
    if type(said[field]) is (str if _is_task(types[field]) else types[field])
  }
  if wrong := (types.keys() | said.keys()) - right:
    raise ValueError(
      f'A message of kind {name!r} has missing, unknown or wrong values of '
      f'{", ".join(sorted(wrong))}: {text[:_MAX_QUOTED]!r}. {_ADVICE}'
    )
  return kind(
    **{
      field: spec_lib.Task.parse(value) if _is_task(types[field]) else value
      for field, value in said.items()
    }
  )


def _is_task(kind: object) -> bool:
  return kind is spec_lib.Task


def _facts(text: str) -> dict[str, Any]:
  try:
    said = json.loads(text)
  except ValueError:
    said = None
  if not isinstance(said, dict):
    raise ValueError(f'{text[:_MAX_QUOTED]!r} is no message. {_ADVICE}')
  return said


def hear(texts: Iterable[str], handlers: Handlers) -> None:
  """Gives messages to the handlers of their kinds.

  Those that are not valid, or have no handler, are logged and dropped.

  Args:
    texts: the messages, oldest first.
    handlers: called with a message, by its kind.
  """
  for text in texts:
    try:
      message = parse(text)
    except ValueError as error:
      logging.warning('%s', error)
      continue
    if handler := handlers.get(type(message)):
      handler(message)
    else:
      logging.warning('Nothing here hears %s.', message)
