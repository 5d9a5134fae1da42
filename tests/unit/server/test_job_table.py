"""Rows of the table of a job's tasks, from what tasks have told."""

import pytest

from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import job_table
from tfps.server import observation

_STEPS = 'tfps_steps_total'
_BYTES = 'tfps_transferred_bytes_total'


def _metric(name, task, value, **labels):
  labels = {'job': task.partition(':')[0], 'task': task, **labels}
  return {'name': name, 'labels': labels, 'value': value}


def _told(task, at, *metrics, doing=(), event=''):
  return observation.Observation(
    task, 'h0', 7, at, list(doing), [(at, event)], list(metrics)
  )


def _view(*told, silent=()):
  observed = {spec_lib.Task.parse(each.task): each for each in told}
  observed |= {spec_lib.Task.parse(task): 'is unreachable' for task in silent}
  statuses = {
    task: health.Status(
      task, 'h0:1', health.State.ALIVE, incarnation=255 + task.index
    )
    for task in observed
    if str(task) not in silent
  }
  return job_table.View.of(statuses, observed)


def _rows(view, before):
  return {row.task: row for row in job_table.rows(view, before)}


@pytest.fixture
def coordinated():
  """Two views of a coordinator's job, 2 seconds apart."""

  def view(at, steps, pulled, *, silent=()):
    chief = _told(
      'chief:0',
      at,
      _metric(_STEPS, 'worker:0', steps),
      _metric(_STEPS, 'worker:1', 10),
      _metric(_BYTES, 'chief:0', pulled, ps='ps:0', direction='pull'),
      _metric(_BYTES, 'chief:0', 50, ps='ps:0', direction='push'),
      _metric('tfps_memory_bytes', 'chief:0', 1e6),
      {'name': 'tfps_staleness_updates', 'labels': {'task': 'chief:0'}},
      doing=[
        ('executes a function', 'worker:0', 1.5),
        ('executes steps', 'MainThread', 2.0),
      ],
      event='lost worker:1',
    )
    ps = _told('ps:0', at, _metric('tfps_memory_bytes', 'ps:0', 2e6))
    return _view(chief, ps, _told('worker:0', at), silent=silent)

  return view(100.0, 20, 100), view(102.0, 60, 400, silent=['worker:1'])


def test_rates_lag_and_memory_are_those_of_each_task(coordinated):
  before, view = coordinated
  rows = _rows(view, before)
  assert list(rows) == ['chief:0', 'ps:0', 'worker:0', 'worker:1']
  assert rows['worker:0'].steps_per_sec == 20
  assert rows['worker:1'].steps_per_sec == 0
  assert (rows['worker:0'].lag, rows['worker:1'].lag) == (0, 50)
  assert rows['ps:0'].steps_per_sec is None
  assert rows['ps:0'].bytes_per_sec == 150
  assert rows['chief:0'].bytes_per_sec is None
  assert rows['chief:0'].memory_bytes == 10**6
  assert rows['worker:0'].memory_bytes is None


def test_states_activities_and_events_are_told(coordinated):
  before, view = coordinated
  rows = _rows(view, before)
  assert rows['worker:1'].state == 'is unreachable'
  assert rows['worker:1'].incarnation is None
  assert rows['worker:0'].state == 'alive'
  assert rows['worker:0'].incarnation == 'ff'
  assert rows['chief:0'].doing == 'executes steps for 2.0 s'
  assert rows['worker:0'].doing == 'executes a function for 1.5 s'
  assert rows['worker:1'].event == 'lost worker:1'
  assert rows['worker:0'].event == ''


def test_nothing_has_a_rate_at_first_and_after_a_restart():
  def view(at, steps):
    return _view(_told('worker:0', at, _metric(_STEPS, 'worker:0', steps)))

  first, later, restarted = view(1.0, 50), view(2.0, 60), view(3.0, 5)
  assert _rows(first, first)['worker:0'].steps_per_sec is None
  assert _rows(later, first)['worker:0'].steps_per_sec == 10
  assert _rows(restarted, later)['worker:0'].steps_per_sec is None


def test_between_graphs_workers_and_ps_have_bytes_of_their_own():
  def view(at, number):
    return _view(
      *(
        _told(
          f'worker:{i}',
          at,
          *(
            _metric(
              _BYTES, f'worker:{i}', number * (i + 1), ps=ps, direction='pull'
            )
            for ps in ('ps:0', 'ps:1')
          ),
        )
        for i in range(2)
      ),
      _told('ps:0', at),
      _told('ps:1', at),
    )

  rows = _rows(view(10.0, 30), view(5.0, 10))
  found = {task: row.bytes_per_sec for task, row in rows.items()}
  assert found == {'ps:0': 12, 'ps:1': 12, 'worker:0': 8, 'worker:1': 16}
