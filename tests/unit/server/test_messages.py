"""Messages of tasks to each other come as they went, or are named."""

import dataclasses
import json

import pytest

from tfps.cluster.spec import Task
from tfps.server import messages

_HOST = {'kind': 'Host', 'version': 1}
_VALUES = {Task: Task('worker', 3), str: 'h:1', bool: True, int: 2**59 + 1}


@pytest.mark.parametrize('kind', messages.KINDS.values(), ids=messages.KINDS)
def test_every_kind_survives_its_way(kind):
  message = kind(*(_VALUES[field.type] for field in dataclasses.fields(kind)))
  assert messages.parse(message.to_json()) == message


@pytest.mark.parametrize(
  ('said', 'named'),
  [
    ({'kind': 'Hello', 'version': 2}, "'Hello' in version 2 is not known"),
    ({'kind': 'Greeting', 'version': 1}, "'Greeting' in version 1 is not"),
    ({'joining': {}}, 'None in version None is not known here, .*Joining 1'),
    ({'kind': [1], 'version': 1}, r'of kind \[1\] in version 1 is not known'),
    (_HOST, "'Host' has missing, unknown or wrong values of task:"),
    (_HOST | {'task': 7}, 'values of task: .*7'),
    (_HOST | {'task': 'ps'}, "'ps'"),
    (_HOST | {'task': 'ps:1', 'a': 1, 'b': 2}, 'values of a, b:'),
    (_HOST | {'kind': 'Observe', 'number': True}, 'of has_stacks, number:'),
    ([1], r"'\[1\]' is no message"),
  ],
)
def test_what_is_not_valid_is_named_and_the_next_is_heard(said, named, caplog):
  host = messages.Host(Task('ps', 1))
  with pytest.raises(ValueError, match=named):
    messages.parse(json.dumps(said))
  heard = []
  texts = ['no JSON', json.dumps(said), host.to_json()]
  messages.hear(texts, {messages.Host: heard.append})
  assert heard == [host]
  assert "'no JSON' is no message. Run the same version of" in caplog.text
  assert len(caplog.records) == 2


def test_what_has_no_handler_is_told(caplog):
  messages.hear([messages.MayLeave(Task('chief', 0)).to_json()], {})
  assert 'Nothing here hears MayLeave' in caplog.text
