"""Dumps of what tasks do, without servers."""

import threading

import pytest

from tfps.cluster import spec as spec_lib
from tfps.monitor import activities
from tfps.monitor import registry as registry_lib
from tfps.server import dump_command
from tfps.server import dumps
from tfps.server import messages
from tfps.server import observation

_CHIEF, _WORKER = spec_lib.Task('chief', 0), spec_lib.Task('worker', 1)


@pytest.fixture
def registry(monkeypatch):
  registry = registry_lib.Registry()
  registry.task = _CHIEF
  monkeypatch.setattr(registry_lib, 'of_process', lambda: registry)
  return registry


def _observation(task, *doing, stacks='', event=''):
  return observation.Observation(
    str(task),
    'h0',
    7,
    100.0,
    list(doing),
    [(100.0, event)],
    [],
    stacks=stacks,
  )


def test_a_dump_tells_what_tasks_do_and_for_whom():
  text = dumps.text(
    {
      _CHIEF: _observation(
        _CHIEF,
        ('waits in fetch', 'MainThread', 3.25),
        ('executes a function', 'worker:1', 3.0),
        stacks='thread MainThread:\n  File "train.py", line 1\n',
        event='lost worker:0',
      ),
      spec_lib.Task('ps', 0): 'is unreachable',
      _WORKER: _observation(_WORKER),
    }
  )
  assert text.splitlines() == [
    'chief:0, process 7 on h0',
    '  last event: lost worker:0',
    '  3.2 s: MainThread waits in fetch',
    '  3.0 s: worker:1 executes a function',
    '  thread MainThread:',
    '    File "train.py", line 1',
    '',
    'ps:0 is unreachable',
    '',
    'worker:1, process 7 on h0',
    '  3.0 s: executes a function for chief:0',
  ]


def test_what_threads_do_is_known_until_they_have_done_it(registry):
  with registry.doing('waits in join'):
    with registry.timed('saves', registry_lib.families.LOOP, 'save'):
      found = observation.of_process(has_stacks=False)
    registry.offer_activities(
      'workers', lambda: [activities.Activity('executes', 'worker:1', 0.0)]
    )
    later = observation.of_process(has_stacks=False)
  name = threading.current_thread().name
  assert [each[:2] for each in found.activities] == [
    ('waits in join', name),
    ('saves', name),
  ]
  assert [each[:2] for each in later.activities] == [
    ('executes', 'worker:1'),
    ('waits in join', name),
  ]
  assert len(registry.activities()) == 1


def test_stacks_name_threads_and_where_they_are():
  go_on, begun = threading.Event(), threading.Event()

  def stand_still():
    begun.set()
    go_on.wait(60)

  thread = threading.Thread(target=stand_still, name='tfps-still')
  thread.start()
  begun.wait(60)
  try:
    text = activities.stacks()
  finally:
    go_on.set()
    thread.join()
  assert text.startswith('thread MainThread:\n')
  still = text[text.index('thread tfps-still:') :]
  assert 'in stand_still' in still
  assert 'in stand_still' not in text[: -len(still)]


def test_an_answer_has_its_place_by_the_requests_number(registry):
  request = messages.Observe(35, has_stacks=True)
  notice, place = observation.answer(request, cluster='{}')
  assert place == 'tfps_observed_3'
  assert 'test_an_answer_has_its_place_by_the_requests_number' in notice


def test_a_deadline_writes_one_dump_a_minute(registry, capsys):
  stalls = dumps.Stalls()
  with registry.doing('waits in fetch'):
    for _ in range(2):
      stalls.write('fetch', {})
  text = capsys.readouterr().err
  assert text.count('tfps: fetch takes too long.') == 1
  assert 'MainThread waits in fetch' in text
  assert 'in test_a_deadline_writes_one_dump_a_minute' in text


def test_an_address_that_nobody_serves_is_named(capsys):
  assert dump_command.main(['--address=localhost:1']) == 1
  assert capsys.readouterr().err == (
    'tfps dump: the server at localhost:1 is unreachable.\n'
  )


def test_without_a_job_the_command_says_how_to_name_it(capsys, monkeypatch):
  monkeypatch.delenv('TF_CONFIG', raising=False)
  assert dump_command.main([]) == 1
  assert '--address=HOST:PORT of a ps' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--address=x'], 'its port is missing'),
    (['--timeout_secs=0'], "'0' is no number of seconds above 0"),
    (['x'], 'unrecognized arguments: x'),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    dump_command.main(words)
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err
