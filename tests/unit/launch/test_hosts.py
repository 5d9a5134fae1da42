"""Hosts as users name them, and the tasks that each gets."""

import re

import pytest

from tests.support import programs
from tfps.cluster import spec as spec_lib
from tfps.launch import command
from tfps.launch import hosts

_H1, _H2 = hosts.Host('h1', 3), hosts.Host('h2', 2)


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    pytest.param('h1:3,h2:2', [_H1, _H2], id='slots'),
    pytest.param(' h1:3 , h2:2', [_H1, _H2], id='spaces'),
    pytest.param('a.b-c', [hosts.Host('a.b-c', 1)], id='no slots'),
    pytest.param('me@h1:3', [hosts.Host('me@h1', 3)], id='user'),
  ],
)
def test_a_list_is_parsed(text, expected):
  assert hosts.parse_hosts(text) == expected


def test_a_file_is_parsed(tmp_path):
  path = tmp_path / 'hosts'
  path.write_text('# all\nh1 slots=3 max_slots=8\n\nh2:2  # the other\nh3\n')
  assert hosts.parse_hostfile(path) == [_H1, _H2, hosts.Host('h3', 1)]


@pytest.mark.parametrize(
  ('text', 'complaint'),
  [
    pytest.param('', "'' is not a host", id='empty'),
    pytest.param('h1,', "'' is not a host", id='comma'),
    pytest.param('h1:0', "'h1:0' is not a host", id='no slot'),
    pytest.param('h1:two', "'h1:two' is not a host", id='a word'),
    pytest.param('h1:1:2', "'h1:1:2' is not a host", id='two numbers'),
    pytest.param('h1,h1', 'each once', id='twice'),
    pytest.param('-oProxyCommand=x', 'is not a host', id='option of ssh'),
    pytest.param('localhost,h2', 'do not reach this one', id='localhost'),
  ],
)
def test_what_is_wrong_in_a_list_is_named(text, complaint):
  with pytest.raises(ValueError, match=complaint) as error:
    hosts.parse_hosts(text)
  assert f'--hosts={text}' in str(error.value)


@pytest.mark.parametrize('text', [None, '# none\n', 'h1 slots\n'])
def test_a_wrong_file_is_named(tmp_path, text):
  path = tmp_path / 'hosts'
  if text is not None:
    path.write_text(text)
  with pytest.raises(ValueError, match=f'--hostfile={path}'):
    hosts.parse_hostfile(path)


def _tasks(**numbers):
  return [
    spec_lib.Task(job, i)
    for job, number in numbers.items()
    for i in range(number)
  ]


@pytest.mark.parametrize(
  ('numbers', 'slots', 'expected'),
  [
    pytest.param(
      {'chief': 1, 'ps': 2, 'worker': 2},
      [3, 2],
      {'h0': 'chief:0 ps:0 worker:0', 'h1': 'ps:1 worker:1'},
      id='as many as slots',
    ),
    pytest.param(
      {'ps': 3, 'worker': 1},
      [1, 4],
      {'h0': 'ps:0', 'h1': 'ps:1 ps:2 worker:0'},
      id='a small host',
    ),
    pytest.param(
      {'ps': 1, 'worker': 2},
      [8, 8],
      {'h0': 'ps:0 worker:0 worker:1'},
      id='hosts to spare',
    ),
  ],
)
def test_ps_are_dealt_and_others_fill_hosts(numbers, slots, expected):
  there = [hosts.Host(f'h{i}', n) for i, n in enumerate(slots)]
  placed = hosts.place(_tasks(**numbers), there)
  names = {}
  for task, host in placed.items():
    names.setdefault(host.name, []).append(str(task))
  assert {name: ' '.join(tasks) for name, tasks in names.items()} == expected


def test_too_few_slots_are_counted():
  with pytest.raises(ValueError, match=r'6 tasks, .* have 5 slots: h1:3, h2:2'):
    hosts.place(_tasks(ps=3, worker=3), [_H1, _H2])


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    pytest.param(['--engine=hosts'], 'needs either', id='none'),
    pytest.param(['--hosts=a', '--hostfile=b'], 'needs either', id='both'),
    pytest.param(['--hosts=a:9', '--preload=json'], '--preload', id='preload'),
  ],
)
def test_options_that_do_not_fit_are_refused(capsys, words, complaint):
  with pytest.raises(SystemExit) as end:
    command.main([*words, programs.LAUNCHED])
  assert end.value.code == 2
  assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
  ('ssh', 'complaint'),
  [
    ('', "--ssh='' is no command. Give ssh and"),
    ('ssh "', "--ssh='ssh \"' is no command. Give ssh and"),
    ('no-such-ssh', "'no-such-ssh'. Install it"),
    ('false', 'h1: false ended with 1. Each host must answer ssh'),
    ("sh -c 'sleep 60'", 'h1 did not answer sh within 0.1 seconds. Check that'),
  ],
)
def test_a_host_that_cannot_be_reached_is_named(
  capsys, set_timeouts, ssh, complaint
):
  set_timeouts(ssh_secs=0.1)
  with pytest.raises(SystemExit) as end:
    command.main([f'--ssh={ssh}', '--hosts=h1:9', programs.LAUNCHED])
  assert end.value.code == 2
  assert complaint in capsys.readouterr().err


def test_each_worker_has_gpus_of_its_host(capsys):
  words = ['--hosts=h1:3,h2:4', '--num_ps=2', '--num_workers=4']
  gpus = ['--gpus_per_worker=2', '--dry_run', programs.LAUNCHED]
  assert command.main([*words, *gpus]) == 0
  lines = capsys.readouterr().out.splitlines()
  seen = {}
  for name, text in zip(lines[0::2], lines[1::2], strict=True):
    (seen[name],) = re.findall(r'CUDA_VISIBLE_DEVICES=(\S+)', text)
  assert seen == {
    '# chief:0 on h1': '-1',
    '# ps:0 on h1': '-1',
    '# ps:1 on h2': '-1',
    '# worker:0 on h1': '0,1',
    '# worker:1 on h2': '0,1',
    '# worker:2 on h2': '2,3',
    '# worker:3 on h2': '4,5',
  }
