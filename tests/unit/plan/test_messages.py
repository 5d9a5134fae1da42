"""What crosses, and that it is what the wire counts."""

import pytest
import tensorflow as tf

from tfps import codecs
from tfps import plan
from tfps.plan import messages
from tfps.variables import partitioners
from tfps.variables import placement

_LINKS = plan.Links(1000)


def _job(shapes=(), num_ps=1, *, tables=(), **kwargs):
  model = plan.Model.of_shapes(shapes or [[]], 0.0)
  for table in tables:
    model = model.with_table(*table)
  return plan.Job(model, 2, num_ps, _LINKS, **kwargs)


def test_what_is_large_is_divided_as_on_the_wire():
  # 1.2 MB, 0.4 MB twice, and 0.6 MB.
  found = messages.of(_job([[300_000], [100_000], [100_000], [150_000]]))
  each = [message.num_bytes for message in found.dense]
  assert each == [1_200_000, 800_000, 600_000]
  assert [message.num_bytes for message in found.pushes] == each


def test_codecs_have_their_own_sizes():
  job = _job([[300_000], []], pull=codecs.Float16(), push=codecs.Int8())
  found = messages.of(job)
  # What has no dimension stays as it is.
  assert found.pulled(0) == 600_000 + 4
  assert found.pushed(0) == codecs.Int8().wire_bytes(300_000, tf.float32) + 4


def test_numbers_of_rows_cross_once():
  found = messages.of(_job(tables=[(1000, 10, 50)]))
  assert found.requests[0].num_bytes == 8 * 50
  assert found.pulled(0) == 4 * 10 * 50 + 4
  assert found.pushed(0) == 8 * 50 + 4 * 10 * 50 + 4


def test_it_is_told_how_many_rows_of_several_tables_cross():
  found = messages.of(_job(tables=[(1000, 10, 50)] * 2))
  assert found.requests[0].num_bytes == 2 * (8 * 50 + 8)
  assert found.pulled(0) == 2 * 4 * 10 * 50 + 4
  assert found.pushed(0) == 2 * (8 * 50 + 8 + 4 * 10 * 50 + 8) + 4


def test_sums_of_several_workers_have_rows_of_their_own():
  found = messages.of_sum(_job(tables=[(1000, 10, 50)]), 2)
  assert found.pushes[0].num_bytes == (4 * 10 + 8) * 2 * 50 + 2 * 8 + 4


def test_rows_of_a_table_in_shards_come_from_all_ps():
  found = messages.of(
    _job(
      num_ps=2,
      tables=[(1001, 10, 50)],
      partitioner=partitioners.FixedShards(2),
    )
  )
  assert found.ps_bytes == (501 * 40, 500 * 40 + 4)
  assert sum(m.num_bytes for m in found.requests) == pytest.approx(400)


def test_placement_is_the_real_one():
  shapes = [[1000], [10], [10], [1000], [10], [10]]
  by_turns = _job(shapes, 3, placement=placement.RoundRobin())
  assert messages.of(by_turns).ps_bytes == (8000, 80, 80)
  assert messages.of(_job(shapes, 3)).ps_bytes == (4000, 4040, 120)
