"""Steps of an execution that marks tell of."""

import pytest

from tfps.updates import attempts
from tfps.updates import step_log as step_log_lib


@pytest.mark.parametrize(
  ('steps', 'marked', 'least', 'most'),
  [
    ([0, 0], {0, 1}, 0, 1),
    ([3, 3], {0, 1}, 3, 4),
    ([4, 3], {0, 1}, 3, 5),
    ([1, 0], {0, 1}, 0, 2),
    ([5, 3], {0, 1}, 3, 5),
    ([5, 5], {0, 1}, 5, 5),
    ([6, 5], {0, 1}, 5, 5),  # ps:0 has the global step
    ([3, 0], {0}, 3, 4),  # no step writes to ps:1
    ([3, 0], set(), 0, 1),
  ],
)
def test_what_marks_tell_of_five_steps(steps, marked, least, most):
  applied = attempts.Applied.of(steps, marked, 5)
  assert (applied.least, applied.most) == (least, most)


def test_ids_are_apart_and_keep_their_slots():
  ids = [
    step_log_lib.StepLog(
      [], slots=[slot] * 3, own='worker:0', tell=print
    ).new_id()
    for slot in (0, 1, 1)
  ]
  steps = step_log_lib.MAX_STEPS + 2
  taken = {number for first in ids for number in (first, first + steps - 1)}
  assert len(taken) == 6
  assert all(0 < number < 1 << 63 for number in taken)
