import logging

import tfps
from tfps.recovery import events


def test_a_listener_is_told():
  told = []
  events.Events(told.append).tell('back', ['ps:1'], 0.5)
  (event,) = told
  assert isinstance(event, tfps.RecoveryEvent)
  assert (event.kind, event.tasks) == ('back', ('ps:1',))
  assert event.set_back_secs == 0.5


def test_a_listener_that_fails_does_no_harm(caplog):
  def fail(event):
    raise KeyError('of the listener')

  with caplog.at_level(logging.ERROR):
    events.Events(fail).tell('lost', ['worker:0'])
  assert 'of the listener' in caplog.text


def test_nobody_need_listen():
  events.Events(None).tell('lost', ['worker:0'])
