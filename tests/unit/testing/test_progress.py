"""What tasks have written is read as numbers."""

from tfps.testing.chaos import progress


def test_gaps_and_losses_are_told_from_what_was_written():
  assert progress.numbers('at 5 1.5\nat 7 2W11\nat 10 2.5\nat ', 'at') == [
    [5, 1.5],
    [10, 2.5],
  ]
  assert progress.longest_gap([9, 1, 10, 14, 15], began=9.5) == (10, 14)
  assert progress.longest_gap([], began=0) == (0, 0)
  times = [9, 1, 10, 14, 15, 25]
  assert progress.resumed_after(times, began=9.5, within=0.2) == 0.5
  assert progress.resumed_after(times, began=9.5, within=1) == 4.5
  assert progress.resumed_after([9], began=9, within=1) == 0
  assert progress.set_back([5, 10, 15, 5, 10, 8, 20]) == 12
