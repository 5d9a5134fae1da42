"""What a simulation says where it can be told by hand, and what it refuses."""

import dataclasses
import subprocess
import sys

import pytest

from tfps import plan
from tfps.plan import advice
from tfps.variables import placement

# 100 MB a second, and nothing else takes any time.
_LINKS = plan.Links(800, overhead=0.0)
_NOTHING = plan.Costs(
  step_secs=0,
  execution_secs=0,
  message_secs=0,
  apply_bytes_per_sec=1e15,
  codec_bytes_per_sec=1e15,
)
_MODEL = plan.Model.of_shapes([[2_500_000]], 0.0)  # 10 MB, in one message


def _job(model=_MODEL, workers=1, ps=1, *, links=_LINKS, **kwargs):
  given = {'costs': _NOTHING, 'steps_per_execution': 1000, **kwargs}
  return plan.Job(model, workers, ps, links, **given)


def _secs(*args, **kwargs):
  return plan.predict(_job(*args, **kwargs)).secs_per_step


def test_one_variable_goes_there_and_back():
  assert _secs() == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize(
  ('steps_per_execution', 'expected'), [(1, 0.2), (8, 0.12125), (1000, 0.11)]
)
def test_what_is_applied_is_pulled_while_the_rest_is_pushed(
  steps_per_execution, expected
):
  parts = plan.Model.of_shapes([[250_000]] * 10, 0.0)
  found = _secs(parts, steps_per_execution=steps_per_execution)
  # Where an execution begins, it waits for the one before.
  assert found == pytest.approx(expected, rel=0.01)


def test_computing_adds_to_it():
  model = dataclasses.replace(_MODEL, compute_secs=0.3)
  prediction = plan.predict(_job(model))
  assert prediction.secs_per_step == pytest.approx(0.5, rel=0.01)
  assert prediction.bottleneck == 'worker:0, computing'


@pytest.mark.parametrize(
  ('prefetch', 'expected'),
  # With one step ahead, two steps take what one takes without.
  [(0, 0.3), (1, 0.15), (2, 0.1)],
)
def test_prefetching_overlaps_steps(prefetch, expected):
  model = dataclasses.replace(_MODEL, compute_secs=0.1)
  found = _secs(model, prefetch=prefetch)
  assert found == pytest.approx(expected, rel=0.02)


def test_workers_share_the_link_of_a_ps():
  prediction = plan.predict(_job(workers=4, mode='sync'))
  assert prediction.secs_per_step == pytest.approx(0.8, rel=0.01)
  assert prediction.steps_per_sec == pytest.approx(5, rel=0.01)
  assert prediction.num_bytes['host ps-0, up'] == 10_000_000
  assert prediction.num_bytes['host worker-0, up'] == 2_500_000


def test_workers_that_do_not_wait_pull_while_others_push():
  prediction = plan.predict(_job(workers=4))
  # No less than one direction's bytes take, no more than both.
  assert 0.4 < prediction.secs_per_step < 0.7
  assert prediction.bound_secs == pytest.approx(0.1)


def test_more_ps_share_what_is_in_shards():
  model = plan.Model.of_shapes([[1_250_000]] * 2, 0.0)
  assert _secs(model, 4, 2, mode='sync') == pytest.approx(0.4, rel=0.01)


def test_tasks_of_one_host_take_no_link():
  prediction = plan.predict(_job(host_of={'ps:0': 'a', 'worker:0': 'a'}))
  assert prediction.num_bytes == {}
  assert prediction.secs_per_step < 0.01


def test_links_of_racks_are_shared():
  racks = {'ps-0': 'x', 'worker-0': 'y', 'worker-1': 'y'}
  links = dataclasses.replace(_LINKS, rack_mbit_per_sec=400.0)
  prediction = plan.predict(
    _job(workers=2, links=links, rack_of=racks, mode='sync')
  )
  assert prediction.secs_per_step == pytest.approx(0.8, rel=0.01)
  assert prediction.bottleneck.startswith(('rack', 'latency'))


@pytest.mark.parametrize(
  ('limit', 'expected'),
  [('fabric_mbit_per_sec', 0.4), ('connection_mbit_per_sec', 0.2 * 2)],
)
def test_what_else_limits_counts(limit, expected):
  links = dataclasses.replace(_LINKS, **{limit: 400.0})
  assert _secs(links=links) == pytest.approx(expected, rel=0.01)


def test_headers_take_their_part():
  links = dataclasses.replace(_LINKS, overhead=0.1)
  prediction = plan.predict(_job(links=links))
  assert prediction.secs_per_step == pytest.approx(0.22, rel=0.01)
  assert prediction.num_bytes['host ps-0, up'] == 10_000_000


def test_a_ps_applies_one_gradient_after_another():
  costs = dataclasses.replace(_NOTHING, apply_bytes_per_sec=1e7)
  prediction = plan.predict(_job(workers=2, costs=costs))
  assert prediction.secs_per_step == pytest.approx(2.0, rel=0.2)
  assert prediction.bottleneck == 'ps:0, applying'


def test_steps_that_make_one_update_share_what_crosses():
  model = dataclasses.replace(_MODEL, compute_secs=0.1)
  assert _secs(model, steps_per_update=4) == pytest.approx(0.15, rel=0.01)


def test_only_the_first_and_the_last_of_them_overlap_with_what_crosses():
  parts = plan.Model.of_shapes([[250_000]] * 10, 0.3)
  # Forward takes as long as the pull, and so does half of backward: it is the
  # first part of the one and the last of the other that are left.
  found = _secs(parts, steps_per_update=4, steps_per_execution=4)
  assert found == pytest.approx((4 * 0.3 + 0.02) / 4, rel=0.005)


def test_rows_cross_one_after_the_other():
  # 2,500 rows of 4 kB, there and back.
  model = plan.Model(
    (plan.Variable((100_000, 1000), rows=2500),), compute_secs=0.0
  )
  assert _secs(model) == pytest.approx(0.2, rel=0.02)


class TestSync:
  """Workers that make each update together."""

  def _predict(self, workers, backup_workers, *, compute_spread=0.5):
    model = dataclasses.replace(_MODEL, compute_secs=10.0)
    return plan.predict(
      _job(
        model,
        workers,
        links=dataclasses.replace(_LINKS, mbit_per_sec=1e6),
        mode='sync',
        backup_workers=backup_workers,
        compute_spread=compute_spread,
      )
    )

  def test_it_takes_what_a_step_takes(self):
    found = self._predict(3, 0, compute_spread=0.0)
    assert found.secs_per_step == pytest.approx(10, rel=0.01)
    assert found.updates_per_sec == pytest.approx(0.1, rel=0.01)
    assert found.steps_per_sec == pytest.approx(0.3, rel=0.01)

  def test_the_slowest_worker_counts(self):
    assert self._predict(8, 0).secs_per_step > 13

  def test_backup_workers_spare_waiting(self):
    alone = self._predict(8, 0).updates_per_sec
    assert self._predict(8, 2).updates_per_sec > 1.2 * alone

  def test_workers_of_a_host_push_once(self):
    # Two hosts with two workers each; a table of which each reads 10 rows.
    hosts = {f'worker:{i}': 'ab'[i // 2] for i in range(4)}
    model = plan.Model.of_shapes([[100_000]], 0.0).with_table(1000, 4, 10)
    job = _job(model, 4, host_of=hosts, mode='sync')
    by_host = dataclasses.replace(job, by_host=True)
    alone, together = plan.predict(job), plan.predict(by_host)
    rows, asked = 10 * 4 * 4, 80
    # Of each worker, for one of whose steps there are four on the ps' link.
    assert alone.num_bytes['host a, up'] == (2 * (400_000 + rows + asked)) / 4
    assert together.num_bytes['host a, up'] == pytest.approx(
      (400_000 + 2 * (rows + asked) + 16 + 2 * asked) / 4
    )
    down = 'host ps-0, down'
    assert together.num_bytes[down] < 0.51 * alone.num_bytes[down]
    assert (
      together.num_bytes['host ps-0, up'] == (alone.num_bytes['host ps-0, up'])
    )
    assert together.steps_per_sec > 1.2 * alone.steps_per_sec
    assert together.updates_per_sec == together.steps_per_sec / 4


def test_a_prediction_is_the_same_again():
  job = _job(workers=3, compute_spread=0.3)
  assert plan.predict(job) == plan.predict(job)


def test_a_topology_aware_placement_takes_bytes_off_links():
  hosts = {'ps:0': 'a', 'worker:0': 'a', 'worker:1': 'a'}
  model = plan.Model.of_shapes([[1000]] * 10, 0.0)
  aware = plan.predict(
    _job(model, 2, 2, host_of=hosts, placement=placement.TopologyAware())
  )
  assert aware.ps_bytes == (40_000, 0)
  assert max(aware.num_bytes.values(), default=0) == 0


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: plan.Links(0), 'mbit_per_sec is 0. Give a number, more than 0'),
    (lambda: plan.Links(1, overhead=-1), 'overhead is -1'),
    (lambda: plan.Costs(step_secs=-1.0), 'step_secs is -1.0'),
    (lambda: plan.Costs(apply_bytes_per_sec=0), 'apply_bytes_per_sec is 0'),
    (lambda: plan.Costs(shared_cpus=0), 'shared_cpus is 0'),
    (lambda: plan.Model((), 0.1), 'has no variables'),
    (lambda: plan.Model.of_bytes(1e6, float('nan')), 'compute_secs is nan'),
    (lambda: plan.Variable((10,), rows=11), 'rows is 11, but the shape'),
    (lambda: plan.Variable((0,)), 'dimension is 0'),
    (lambda: plan.Variable((1,), dtype='int32'), "dtype is 'int32'"),
    (lambda: _job(workers=0), 'num_workers is 0'),
    (lambda: _job(ps=40_000), 'num_ps is 40000'),
    (lambda: _job(mode='stale'), "mode is 'stale'. Give one of async, sync"),
    (lambda: _job(backup_workers=1), 'backup_workers is 1, but in mode async'),
    (lambda: _job(mode='sync', backup_workers=1), 'is 1 of 1 workers'),
    (lambda: _job(by_host=True), 'by_host is True with mode async and 0'),
    (lambda: _job(mode='sync', prefetch=1), 'prefetch is 1, but in mode sync'),
    (lambda: _job(prefetch=3), 'prefetch is 3'),
    (lambda: _job(host_of={'ps:4': 'a'}).cluster, "names 'ps:4', not one of"),
    (lambda: _job(rack_of={'a': 'x'}).topology, "host 'ps-0' is in no rack"),
  ],
)
def test_what_cannot_be_is_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_more_ps_are_advised_where_their_links_are_full():
  model = plan.Model.of_shapes([[250_000]] * 20, 0.2)
  assert advice.balanced_ps(_job(model, 8, 1)) > 2
  found = advice.options(_job(model, 8, 1), {})
  assert found[0].what.endswith(' ps')
  assert found[0].gain > 2


@pytest.mark.exhaustive
def test_fewer_ps_are_advised_where_workers_compute():
  model = plan.Model.of_shapes([[1000]] * 20, 0.5)
  assert advice.balanced_ps(_job(model, 4, 8)) == 1
  (option,) = advice.options(_job(model, 4, 8), {})
  assert str(option).startswith('1 ps: 7.9')
  assert option.gain == pytest.approx(1, abs=0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize(('workers', 'ps'), [(1, 1), (2, 1), (4, 2)], ids=str)
def test_an_estimate_is_near_a_prediction(workers, ps):
  model = plan.Model.of_shapes([[250_000]] * 20, 0.1)
  job = _job(model, workers, ps)
  predicted = plan.predict(job).steps_per_sec
  assert advice.estimate(job) == pytest.approx(predicted, rel=0.35)


def test_planning_needs_no_tensorflow():
  program = (
    'import sys; from tfps import plan; '
    'plan.predict(plan.Job(plan.Model.of_bytes(1e6, 0.1), 2, 1, plan.Links(1)))'
    '; assert "tensorflow" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', program], check=True, timeout=60)
