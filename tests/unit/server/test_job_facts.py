"""Facts for the page of a job: history, events, and when tasks are asked."""

import json

import pytest

from tfps.cluster import spec as spec_lib
from tfps.server import job_facts
from tfps.server import job_table
from tfps.server import observation

_CHIEF = spec_lib.Task('chief', 0)
_PS = spec_lib.Task('ps', 0)
_WORKER = spec_lib.Task('worker', 0)


def _metric(family, value, task='chief:0', **labels):
  labels = {'job': task.partition(':')[0], 'task': task, **labels}
  return {'name': family, 'labels': labels, **value}


def _steps(task, number):
  return _metric('tfps_steps_total', {'value': number}, task)


def _staleness(zeros, ones):
  buckets = [[0.0, zeros], [None, ones]]
  value = {'buckets': buckets, 'sum': float(ones)}
  return _metric('tfps_staleness_updates', value)


class _Job:
  """A job of this process, which tells what it is set to."""

  def __init__(self):
    self.num_asked = 0
    self.at = 100.0
    self.metrics = []
    self.events = []
    self.others = [_PS]

  def here(self):
    self.num_asked += 1
    told = {task: ([], []) for task in self.others}
    told[_CHIEF] = (self.metrics, self.events)
    return {
      task: observation.Observation(
        str(task), 'h0', 7, self.at, [], events, metrics
      )
      for task, (metrics, events) in told.items()
    }


@pytest.fixture
def job():
  return _Job()


@pytest.fixture
def make_facts(job):
  """Makes facts of the job, which are stopped when the test has ended."""
  made = []

  def make(every_secs=0.0, addresses=dict):
    facts = job_facts.JobFacts(
      _CHIEF,
      addresses=addresses,
      here=job.here,
      hosted=tuple,
      describe=lambda: {'configuration': {'program': 'train.py'}},
      every_secs=every_secs,
    )
    made.append(facts)
    return facts

  yield make
  for facts in made:
    facts.stop()


def test_tasks_are_told_with_where_they_are_and_what_else_there_is(
  job, make_facts
):
  job.metrics = [
    _metric('tfps_global_step', {'value': 40}),
    _metric('tfps_step_metric', {'value': 0.5}, name='loss'),
    _metric('tfps_step_metric', {'value': 'nan'}, name='norm'),
    _staleness(3, 1),
  ]
  found = make_facts().since(0)
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert [task['task'] for task in found['tasks']] == ['chief:0', 'ps:0']
  assert found['tasks'][0]['state'] == 'alive'
  assert (found['tasks'][1]['host'], found['tasks'][1]['pid']) == ('h0', 7)
  assert found['values'] == {'global step': 40, 'loss': 0.5, 'norm': 'nan'}
  assert found['staleness'] == [[0.0, 3], [None, 1]]
  assert found['configuration'] == {'program': 'train.py'}
  assert not found['is_over']


def test_the_history_has_rates_since_the_moment_before(job, make_facts):
  facts = make_facts()
  job.others = [_PS, _WORKER]
  job.metrics = [_steps('worker:0', 10), _staleness(10, 0)]
  facts.since(0)
  job.at = 102.0
  job.metrics = [_steps('worker:0', 50), _staleness(10, 0)]
  facts.since(0)
  job.at = 104.0
  job.metrics = [_steps('worker:0', 50), _staleness(13, 1)]
  first, second, third = facts.since(0)['history']
  assert [
    each['steps_per_sec']['worker:0'] for each in (first, second, third)
  ] == [None, 20, 0]
  assert first['bytes_per_sec'] == {'ps:0': None}
  assert second['staleness'] is None
  assert third['staleness'] == 0.25


def test_only_what_is_later_is_told_again(make_facts):
  facts = make_facts()
  (first,) = facts.since(0)['history']
  (second,) = facts.since(first['at'])['history']
  assert second['at'] > first['at']
  assert len(facts.since(0)['history']) == 3


def test_the_history_is_bounded(make_facts, monkeypatch):
  monkeypatch.setattr(job_facts, '_MAX_MOMENTS', 3)
  facts = make_facts()
  last = [facts.since(0)['history'] for _ in range(5)][-1]
  assert len(last) == 3


def test_tasks_are_asked_once_in_a_while(job, make_facts):
  facts = make_facts(every_secs=3600.0)
  assert job.num_asked == 0
  answers = [facts.since(0) for _ in range(3)]
  assert job.num_asked == 1
  assert answers[0] == answers[2]


def test_many_tasks_are_asked_less_often(make_facts):
  tasks = {spec_lib.Task('ps', i): 'localhost:1' for i in range(20)}
  facts = make_facts(every_secs=2.0, addresses=lambda: tasks)
  assert facts.since(0)['every_secs'] == 5.0


def test_after_the_end_the_last_state_is_told(job, make_facts):
  facts = make_facts()
  facts.since(0)
  facts.stop()
  found = facts.since(0)
  assert found['is_over']
  assert len(found['tasks']) == 2
  assert job.num_asked == 1


def test_what_tasks_tell_and_what_is_seen_of_them_are_events(job, make_facts):
  facts = make_facts()
  job.events = [(50.0, 'lost worker:1'), (60.0, 'back worker:1')]
  job.others = []
  facts.since(0)
  job.others = [_PS]
  events = facts.since(0)['events']
  assert [(each['told_by'], each['text']) for each in events] == [
    ('chief:0', 'lost worker:1'),
    ('chief:0', 'back worker:1'),
    ('', 'ps:0 is new'),
  ]
  assert events[0]['at'] == 50.0


@pytest.mark.parametrize(
  ('before', 'after', 'texts'),
  [
    pytest.param(('alive', 'a'), ('alive', 'a'), [], id='the same'),
    pytest.param(
      ('alive', 'a'),
      ('is unreachable', None),
      ['ps:0 is unreachable'],
      id='lost',
    ),
    pytest.param(
      ('is unreachable', None),
      ('alive', 'b'),
      ['ps:0 is alive again'],
      id='back',
    ),
    pytest.param(
      ('alive', 'a'),
      ('alive', 'b'),
      ['ps:0 has been started again'],
      id='restarted meanwhile',
    ),
    pytest.param(('alive', None), ('alive', 'b'), [], id='not known before'),
  ],
)
def test_changes_of_a_task_are_told(before, after, texts):
  rows = [
    {'ps:0': job_table.Row('ps:0', state, incarnation)}
    for state, incarnation in (before, after)
  ]
  changes = list(job_facts._changes(*rows, 7.0))
  assert [event.text for event in changes] == texts
  assert {event.at for event in changes} <= {7.0}
