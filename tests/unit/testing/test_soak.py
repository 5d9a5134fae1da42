"""Training goes on for long, and processes do not grow."""

from tfps.testing.chaos import soak


def test_each_part_of_the_time_has_a_line():
  at = [[0, 0.0], [10, 10.0], [20, 29.0], [30, 31.0], [95, 89.0]]
  memory = {'chief:0': [(1.0, 500.0), (31.0, 700.0), (32.0, 600.0)]}
  lines = soak.report(at, memory, began=0.0, secs=90.0).splitlines()
  assert lines[2:] == [
    '| 0.0..0.5 | 20 | 19.0 | 10.0 | 500 |',
    '| 0.5..1.0 | 10 | 29.0 | 31.0 | 700 |',
    '| 1.0..1.5 | 65 | 29.0 | 60.0 |  |',
  ]
