"""Restarted tasks and tasks that stay silent are detected."""

import pytest

from tfps.recovery import error_classifier

_KNOWN = {0: 7, 1: 8}


@pytest.mark.parametrize(
  ('looks', 'are_lost'),
  [
    ([_KNOWN], False),
    ([{0: 7, 1: 9}], True),
    ([{0: 7, 1: None}], False),
    ([{0: 7, 1: None}, {0: 7, 1: None}], True),
    ([{0: 7, 1: None}, {0: None, 1: 8}], False),
    ([{0: 7, 1: None}, _KNOWN, {0: 7, 1: None}], False),
  ],
  ids=[
    'all as they were',
    'one has restarted',
    'one is silent',
    'one is still silent',
    'another is silent',
    'one has answered meanwhile',
  ],
)
def test_looks(looks, are_lost):
  changes = error_classifier.ChangeDetector()
  assert [changes.has_changed(look, _KNOWN) for look in looks][-1] == are_lost


def test_a_look_of_long_ago_is_forgotten():
  times = iter([0.0, 100.0, 101.0])
  changes = error_classifier.ChangeDetector(lambda: next(times))
  silent = {0: 7, 1: None}
  assert [changes.has_changed(silent, _KNOWN) for _ in range(3)] == [
    False,
    False,
    True,
  ]
