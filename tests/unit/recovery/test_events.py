import logging

import pytest

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


@pytest.mark.parametrize(
  ('event', 'text'),
  [
    (events.RecoveryEvent('lost', ('worker:0',)), 'lost worker:0'),
    (events.RecoveryEvent('back', ('ps:0', 'ps:1')), 'back ps:0, ps:1'),
    (
      events.RecoveryEvent('back', ('ps:1',), 5.72),
      'back ps:1 (set back by 5.7 s)',
    ),
    (
      events.RecoveryEvent('repeated', ('worker:1',), steps=20),
      'repeated worker:1 (up to 20 steps)',
    ),
  ],
)
def test_an_event_has_a_text(event, text):
  assert str(event) == text


def test_nobody_need_listen():
  events.Events(None).tell('lost', ['worker:0'])


def test_a_report_counts_what_is_told_to_nobody():
  own = events.Events(None)
  own.tell('lost', ['worker:0', 'worker:1'])
  own.tell('back', ['worker:0'])
  own.tell('back', ['ps:0', 'ps:1'], 3.0)
  own.tell('moved', ['ps:0'])
  own.tell_repeated('worker:0', 4)
  own.tell_repeated('worker:1', 1)
  assert own.report == tfps.RecoveryReport(
    workers_lost=2, ps_repaired=2, steps_repeated=5
  )


def test_who_repeats_steps_is_told():
  told = []
  events.Events(told.append).tell_repeated('worker:1', 2)
  (event,) = told
  assert (event.kind, event.tasks, event.steps) == (
    'repeated',
    ('worker:1',),
    2,
  )
