"""The registry: counters, gauges, and sources, some of which may hang."""

import gc
import threading

import pytest

from tests.support import samples
from tests.support import waiting
from tfps.cluster import spec as spec_lib
from tfps.monitor import families
from tfps.monitor import registry as registry_lib


@pytest.fixture
def registry():
  registry = registry_lib.Registry()
  registry.task = spec_lib.Task('chief', 0)
  return registry


def test_counters_add_up_by_task_and_labels(registry):
  registry.add(families.STEPS, 2, task='worker:0')
  registry.add(families.STEPS, 3, task='worker:0')
  registry.add(families.STEPS, task='worker:1')
  registry.add(families.LOOP, 1.5, 'save')
  assert samples.values(registry, families.STEPS) == {
    ('worker:0',): 5,
    ('worker:1',): 1,
  }
  assert samples.values(registry, families.LOOP) == {('chief:0', 'save'): 1.5}


def test_counts_of_many_threads_are_exact(registry):
  def count():
    for _ in range(1000):
      registry.add(families.STEPS)

  threads = [threading.Thread(target=count) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert samples.values(registry, families.STEPS) == {('chief:0',): 4000}


def test_a_gauge_has_its_last_value(registry):
  registry.set(families.GLOBAL_STEP, 7)
  registry.set(families.GLOBAL_STEP, 5)
  assert samples.values(registry, families.GLOBAL_STEP) == {('chief:0',): 5}


def test_time_within_a_context_is_added_also_after_an_error(registry):
  with (
    pytest.raises(RuntimeError),
    registry.timed('executes', families.LOOP, 'execute'),
  ):
    raise RuntimeError
  assert samples.values(registry, families.LOOP)['chief:0', 'execute'] >= 0
  assert registry.activities() == []


def test_a_process_tells_its_memory_start_and_time(registry):
  for family in (families.MEMORY, families.START, families.CPU):
    assert samples.values(registry, family)[('chief:0',)] > 0


def test_a_source_replaces_that_of_the_same_name(registry):
  for value in (1, 2):
    registry.offer(
      'queue',
      registry,
      lambda _, value=value: [families.Sample(families.QUEUED, value)],
    )
  assert samples.values(registry, families.QUEUED) == {('chief:0',): 2}


@pytest.mark.parametrize('reads_ps', [False, True])
def test_a_source_goes_with_its_owner(registry, reads_ps):
  class Owner:
    number = 7

  def read(owner):
    return [families.Sample(families.QUEUED, owner.number)]

  owner = Owner()
  registry.offer('queue', owner, read, reads_ps=reads_ps)
  assert samples.values(registry, families.QUEUED) == {('chief:0',): 7}
  del owner
  gc.collect()
  assert samples.values(registry, families.QUEUED) == {}
  assert not registry._sources
  assert not registry._readers
  assert samples.values(registry, families.FAILED_READS) == {('chief:0',): 0}


def test_only_the_chief_reads_from_ps(registry):
  registry.offer(
    'updates',
    registry,
    lambda _: [families.Sample(families.UPDATES, 9)],
    reads_ps=True,
  )
  assert samples.values(registry, families.UPDATES) == {('chief:0',): 9}
  registry.is_chief = False
  assert samples.values(registry, families.UPDATES) == {}


def test_a_source_that_hangs_is_left_out_and_not_called_again(
  registry, set_timeouts
):
  set_timeouts(probe_secs=0.05)
  calls, go_on = [], threading.Event()

  def hang(_):
    calls.append(1)
    go_on.wait(60)
    return [families.Sample(families.UPDATES, 9)]

  registry.offer('updates', registry, hang, reads_ps=True)
  registry.offer(
    'table',
    registry,
    lambda _: [families.Sample(families.LATE, 4)],
    reads_ps=True,
  )
  try:
    for _ in range(2):
      assert samples.values(registry, families.LATE) == {('chief:0',): 4}
    assert samples.values(registry, families.UPDATES) == {}
    assert len(calls) == 1
    assert samples.values(registry, families.FAILED_READS)[('chief:0',)] >= 3
  finally:
    go_on.set()
  waiting.until(lambda: samples.values(registry, families.UPDATES))


def test_a_source_without_values_is_counted(registry):
  def fail(_):
    raise registry_lib.UnavailableError('ps:0 is lost')

  registry.offer('updates', registry, fail, reads_ps=True)
  registry.collect()
  assert samples.values(registry, families.FAILED_READS) == {('chief:0',): 2}


@pytest.mark.parametrize('reads_ps', [False, True])
def test_a_source_that_fails_is_logged_and_holds_up_no_other(
  registry, caplog, reads_ps
):
  def fail(_):
    raise RuntimeError('a bug')

  registry.offer('queue', registry, fail, reads_ps=reads_ps)
  registry.add(families.STEPS, 3)
  assert samples.values(registry, families.STEPS) == {('chief:0',): 3}
  (record,) = caplog.records
  assert record.getMessage() == 'Metrics could not be read.'


def test_the_latest_events_are_kept_with_their_times(registry):
  for number in range(60):
    registry.note_event(f'lost worker:{number}')
  events = registry.events()
  assert [text for _, text in events] == [
    f'lost worker:{number}' for number in range(10, 60)
  ]
  times = [at for at, _ in events]
  assert times == sorted(times)


def test_samples_of_a_family_come_together(registry):
  registry.add(families.STEPS, task='worker:1')
  registry.add(families.EXECUTIONS)
  registry.add(families.STEPS, task='worker:0')
  names = [sample.family.name for sample in registry.collect()]
  assert names == sorted(names)
