"""Campaigns strike, wait, and tell what became of it."""

import pytest

from tfps.testing.chaos import outcomes


def outcome(**kwargs):
  return outcomes.Outcome(
    **{'fault': 'kill', 'job': 'ps', 'mode': 'fit', 'completed': True, **kwargs}
  )


def test_the_table_has_a_line_for_each_fault_job_and_mode():
  text = outcomes.table(
    [
      outcome(resume_secs=0.5, pause_secs=1.0, lost=5, doubled=2),
      outcome(pause_secs=3.0, lost=7, missing=1, doubled=2, loss=0.01),
      outcome(pause_secs=2.0),
      outcome(job='chief', completed=False, detail='ps:1 is unreachable'),
    ]
  )
  assert text.splitlines()[2:] == [
    '| kill | ps | fit | 3 of 3 | 0.0 (0.0..0.5) | 2.0 (1.0..3.0) | 7 | 1 | 2 '
    '| 0.0100..0.0100 |',
    '| kill | chief | fit | 0 of 1 |  |  |  |  |  |  |',
  ]


def test_the_table_takes_the_place_of_the_last():
  page = 'a\n<!-- campaign: begin -->\nold\n<!-- campaign: end -->\nb\n'
  new = outcomes.with_table(page, 'new', name='campaign')
  assert 'old' not in new
  assert outcomes.with_table(new, 'newer', name='campaign').count('new') == 1
  assert new.startswith('a\n')
  assert new.endswith('\nb\n')
  with pytest.raises(ValueError, match='lacks'):
    outcomes.with_table('a', 'new', name='campaign')
