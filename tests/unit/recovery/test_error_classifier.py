"""Trouble is told from loss, and new trouble from old."""

import pytest

from tfps.recovery import error_classifier


def test_trouble_goes_on_until_there_has_been_none_for_a_while(monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(error_classifier.time, 'monotonic', lambda: now[0])
  trouble = error_classifier.ErrorClassifier()
  found = []
  for secs in (0, 5, 50, 61, 1):
    now[0] += secs
    found.append(trouble.record())
  assert found == [0, 5, 55, 0, 1]


@pytest.mark.parametrize(
  ('text', 'ps'),
  [
    ('Unable to find a context_id (1): /job:ps/replica:0/task:3 while', {3}),
    (
      'RecvTensor expects a different device incarnation: 6 vs. 1. Your worker '
      'job ("/job:ps/replica:0/task:0") was probably restarted.',
      {0},
    ),
    ('Unable to find a context_id (1): /job:worker/replica:0/task:3', set()),
    ('Unable to find a context_id (1).', {0, 3}),
    ('failed to connect: /job:ps/replica:0/task:3', set()),
  ],
)
def test_a_ps_that_is_another_is_named_after_a_while(text, ps, monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(error_classifier.time, 'monotonic', lambda: now[0])
  trouble = error_classifier.ErrorClassifier()
  found = []
  for secs in (0, 2, 4, 1, 1):
    now[0] += secs
    found.append(trouble.ps_to_reconnect(RuntimeError(text), [0, 3]))
  assert found == [set(), set(), ps, set(), set()]
