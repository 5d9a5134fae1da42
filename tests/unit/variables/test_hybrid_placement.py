"""Where a hybrid's variables go, and what both places cost."""

import pytest

from tfps.variables import hybrid_placement


def _of(num_bytes, shape=(10,), *, is_table=False, name='kernel'):
  return hybrid_placement.Description(name, shape, num_bytes, is_table)


@pytest.mark.parametrize(
  ('num_workers', 'num_ps', 'description', 'workers', 'ps'),
  [
    (1, 1, _of(100), 0, 200),
    (2, 1, _of(100), 100, 400),
    (2, 2, _of(100), 100, 200),
    (4, 1, _of(100), 150, 800),
    (4, 8, _of(100), 150, 200),
    (4, 2, _of(4000, (1000, 1), is_table=True), 6000, 2 * 2 * 5 * (4 + 8)),
    (2, 2, _of(12, (3, 1), is_table=True), 12, 2 * 3 * (4 + 8)),
    (2, 1, _of(0, None, is_table=True), 0, 0),
  ],
)
def test_costs_are_the_bytes_on_the_busiest_link(
  num_workers, num_ps, description, workers, ps
):
  rule = hybrid_placement.Rule(num_workers, num_ps, rows_per_step=5)
  assert rule.costs(description) == hybrid_placement.Costs(workers, ps)
  cheaper = 'ps' if ps < workers else 'workers'
  assert rule.choose(description) == cheaper


def test_a_report_tells_costs_and_choices():
  rule = hybrid_placement.Rule(4, 2, rows_per_step=5)
  chooser = hybrid_placement.Chooser(rule, None)
  chooser(_of(4000, (1000, 1), is_table=True, name='users'))
  chooser(_of(100, name='kernel'))
  first, *lines = str(hybrid_placement.HybridReport(chooser.made)).splitlines()
  assert first.split() == [
    'variable',
    'where',
    'bytes',
    *['in', 'a', 'ring', 'by', 'ps'],
  ]
  assert [line.split() for line in lines] == [
    ['users', 'ps', '4,000', '6,000', '240'],
    ['kernel', 'workers', '100', '150', '400'],
  ]


def test_a_choice_that_is_none_is_told():
  chooser = hybrid_placement.Chooser(
    hybrid_placement.Rule(2, 1, 5), lambda description: 'gpu'
  )
  with pytest.raises(ValueError, match="choose: gave 'gpu' for kernel"):
    chooser(_of(100))
