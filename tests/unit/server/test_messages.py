"""Messages of tasks to each other come as they went, or are named."""

import dataclasses
import json

import pytest

from tfps.cluster.spec import Task
from tfps.server import messages

_VALUES = {Task: Task('worker', 3), str: 'h:1', bool: True, int: 2**59 + 1}


@pytest.mark.parametrize('kind', messages.KINDS.values(), ids=messages.KINDS)
def test_every_kind_survives_its_way(kind):
  message = kind(*(_VALUES[field.type] for field in dataclasses.fields(kind)))
  assert messages.parse(message.to_json()) == message


@pytest.mark.parametrize(
  ('head', 'named'),
  [
    ({'kind': 'Hello', 'version': 2}, "'Hello' in version 2 is not known"),
    ({'kind': 'Greeting', 'version': 1}, "'Greeting' in version 1 is not"),
    ({'joining': {}}, 'None in version None is not known here, .*Joining 1'),
  ],
)
def test_what_is_not_known_is_named_and_the_next_is_heard(head, named, caplog):
  host = messages.Host(Task('ps', 1))
  with pytest.raises(ValueError, match=named):
    messages.parse(json.dumps(head))
  heard = []
  messages.hear(
    [json.dumps(head), host.to_json()], {messages.Host: heard.append}
  )
  assert heard == [host]
  assert 'Run the same version of tfps in all tasks' in caplog.text


def test_what_has_no_handler_is_told(caplog):
  messages.hear([messages.MayLeave(Task('chief', 0)).to_json()], {})
  assert 'Nothing here hears MayLeave' in caplog.text
