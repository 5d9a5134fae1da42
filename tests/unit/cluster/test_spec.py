import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from tfps.cluster import spec as spec_lib

Cluster = spec_lib.Cluster
Task = spec_lib.Task

PS = ['h0:2222', 'h1:2222']
WORKERS = ['h2:2222', 'h3:2222']
GOOD = {'ps': PS, 'worker': WORKERS}

# jobs, task, words of the message: the value, the remedy.
BAD = {
  'jobs is no mapping': ([PS], None, ["['h0:2222', 'h1:2222']", 'Give a map']),
  'jobs is None': (None, None, ['None', 'Give a mapping']),
  'unknown job': ({**GOOD, 'wrker': PS}, None, ["'wrker'", 'Use one of chief']),
  'job is no string': ({**GOOD, 7: PS}, None, ['7', 'Use one of chief']),
  'old name of chief': (
    {**GOOD, 'master': ['h:1']},
    None,
    ['master', 'Write chief'],
  ),
  'evaluator listed': (
    {**GOOD, 'evaluator': ['h:1']},
    None,
    ['evaluator', 'Remove it'],
  ),
  'no worker': (
    {'ps': PS},
    None,
    ['job worker is missing', 'Give the address'],
  ),
  'only a chief': (
    {'chief': PS[:1]},
    None,
    ['worker is missing', 'Give the addr'],
  ),
  'empty ps': ({**GOOD, 'ps': []}, None, ['job ps', 'Give their addresses']),
  'empty worker': (
    {**GOOD, 'worker': ()},
    None,
    ['job worker', 'Give their addresses'],
  ),
  'addresses are one string': (
    {**GOOD, 'ps': 'h0:2222'},
    None,
    ["'h0:2222'", 'Give a list'],
  ),
  'addresses are None': ({**GOOD, 'ps': None}, None, ['None', 'Give a list']),
  'addresses are a number': ({**GOOD, 'ps': 2}, None, ['2', 'Give a list']),
  'two chiefs': (
    {**GOOD, 'chief': ['h:1', 'h:2']},
    None,
    ['[0, 1]', 'Give one chief'],
  ),
  'a chief but not the first': (
    {**GOOD, 'chief': {1: 'h:1'}},
    None,
    ['[1]', 'Give one chief'],
  ),
  'negative index': (
    {**GOOD, 'worker': {-1: 'h:1'}},
    None,
    ['-1', 'Give a whole number'],
  ),
  'index is a word': (
    {**GOOD, 'worker': {'x': 'h:1'}},
    None,
    ["'x'", 'Give a whole number'],
  ),
  'index is a boolean': (
    {**GOOD, 'worker': {True: 'h:1'}},
    None,
    ['True', 'Give a whole number'],
  ),
  'same address within a job': (
    {**GOOD, 'ps': ['h:1', 'h:1']},
    None,
    ['ps:0 and ps:1', "'h:1'", 'Give each task its own'],
  ),
  'same address in two jobs': (
    {'ps': ['h:1'], 'worker': ['H:01']},
    None,
    ['ps:0 and worker:0', "'H:01'", 'Give each task its own'],
  ),
  'same address as the chief': (
    {**GOOD, 'chief': ['h3:2222']},
    None,
    ['chief:0 and worker:1', "'h3:2222'", 'Give each task its own'],
  ),
  'task index out of range': (
    GOOD,
    Task('worker', 7),
    ['worker:7', '2 worker tasks', 'Give one of its tasks'],
  ),
  'ps index out of range': (
    {'ps': ['h:1'], 'worker': WORKERS},
    Task('ps', 1),
    ['ps:1', '1 ps task.', 'Give one of its tasks'],
  ),
  'task index left out': (
    {**GOOD, 'worker': {1: 'h2:1', 3: 'h3:1'}},
    Task('worker', 2),
    ['worker:2', 'worker indices 1, 3', 'Give one of its tasks'],
  ),
  'second chief beside none': (
    GOOD,
    Task('chief', 1),
    ['chief:1', '0 chief tasks', 'Give one of its tasks'],
  ),
  'task of unknown job': (GOOD, Task('pss', 0), ["'pss'", 'Use one of chief']),
  'task of old name': (GOOD, Task('master', 0), ['master', 'Write chief']),
  'negative task index': (
    GOOD,
    Task('ps', -1),
    ['-1', 'Give a whole number'],
  ),
  'worker without a cluster': (
    {},
    Task('worker', 0),
    ['worker:0', '0 worker tasks', 'add its address'],
  ),
}

BAD_ADDRESSES = {
  'empty': '',
  'not a string': 2222,
  'none': None,
  'host only': 'h0',
  'empty host': ':2222',
  'empty port': 'h0:',
  'port is a word': 'h0:http',
  'port too large': 'h0:65536',
  'port much too large': 'h0:' + '9' * 50,
  'negative port': 'h0:-1',
  'port with a sign': 'h0:+1',
  'port in other digits': 'h0:٢٢٢٢',
  'port with a fraction': 'h0:1.5',
  'space before': ' h0:2222',
  'space within': 'h0: 2222',
  'newline': 'h0:2222\n',
  'scheme': 'grpc://h0:2222',
  'path': 'h0:2222/x',
  'host with odd characters': 'h%0:2222',
  'host begins with a dash': '-h:2222',
  'two addresses': 'h0:2222,h1:2222',
  'IPv6 without brackets': '::1:2222',
  'IPv6 without port': '[::1]',
  'IPv6 malformed': '[::g]:2222',
  'IPv4 in brackets': '[127.0.0.1]:2222',
  'IPv4 out of range': '300.1.1.1:2222',
  'IPv4 too short': '10.1:2222',
}


@pytest.mark.parametrize(('jobs', 'task', 'words'), BAD.values(), ids=BAD)
def test_refuses_bad_facts(jobs, task, words):
  with pytest.raises(ValueError) as caught:
    Cluster(jobs, task, source='a test')
  for word in ['a test', *words]:
    assert word in str(caught.value)


@pytest.mark.parametrize('address', BAD_ADDRESSES.values(), ids=BAD_ADDRESSES)
def test_refuses_bad_addresses(address):
  with pytest.raises(ValueError) as caught:
    Cluster({'ps': ['h9:1', address], 'worker': WORKERS}, source='a test')
  for word in ['a test: ps:1', repr(address), 'Write host:port']:
    assert word in str(caught.value)


@pytest.mark.parametrize(
  'address',
  [
    'localhost:2222',
    'h0:0',
    '10.0.0.1:65535',
    '[::1]:4000',
    '[fe80::1%eth0]:4000',
    'trainer-ps-0.default.svc:2222',
    'compose_ps_1:2222',
    'node.example.org.:2222',
    'n7:2222',
  ],
)
def test_takes_good_addresses(address):
  cluster = Cluster({'ps': [address], 'worker': WORKERS})
  assert cluster.address(Task('ps', 0)) == address


@pytest.mark.parametrize(
  ('jobs', 'task'),
  [
    (GOOD, None),
    (GOOD, Task('ps', 1)),
    (GOOD, Task('chief', 0)),
    (GOOD, Task('evaluator', 0)),
    ({**GOOD, 'chief': ['h:1']}, Task('chief', 0)),
    ({'worker': {1: 'h:1'}, 'ps': PS}, Task('worker', 1)),
    ({'worker': {}, 'ps': {3: 'h:1'}}, Task('ps', 3)),
    ({'worker': {0: 'h:1', 10: 'h:2'}, 'ps': PS}, Task('worker', 10)),
    ({}, Task('chief', 0)),
    ({}, None),
  ],
)
def test_survives_tf_config(jobs, task):
  cluster = Cluster(jobs, task)
  again = Cluster.from_tf_config({'TF_CONFIG': cluster.tf_config()})
  assert again == cluster
  assert hash(again) == hash(cluster)


def test_port_zero_may_repeat():
  cluster = Cluster({'ps': ['h:0', 'h:0'], 'worker': ['h:0']})
  assert (cluster.num_ps, cluster.num_workers) == (2, 1)


def test_lists_tasks_in_order_of_their_numbers():
  cluster = Cluster({'worker': {10: 'h:10', 9: 'h:9'}, 'ps': PS})
  assert cluster.tasks('worker') == (Task('worker', 9), Task('worker', 10))
  assert [str(t) for t in cluster.tasks()][:2] == ['ps:0', 'ps:1']
  assert cluster.tasks('chief') == ()


def test_another_task_sees_the_same_cluster():
  cluster = Cluster(GOOD, Task('ps', 0), source='a test')
  other = cluster.with_task(Task('worker', 1))
  assert (other.jobs, other.source) == (cluster.jobs, 'a test')
  assert other.task == Task('worker', 1)
  assert other != cluster


def test_cannot_be_changed():
  cluster = Cluster(GOOD)
  with pytest.raises(dataclasses.FrozenInstanceError):
    cluster.task = Task('ps', 0)  # type: ignore[misc]
  with pytest.raises(TypeError):
    cluster.jobs['ps'] = {}  # type: ignore[index]


def test_local_cluster_is_one_chief():
  cluster = Cluster.local()
  assert cluster.task == Task('chief', 0)
  assert cluster.tasks() == ()


def test_tensorflow_sees_the_same_cluster():
  cluster = Cluster({'ps': PS, 'worker': {1: 'h:1'}}, Task('worker', 1))
  expected = {'ps': PS, 'worker': {1: 'h:1'}}
  assert cluster.spec().as_dict() == expected
  resolver = cluster.resolver()
  assert resolver.cluster_spec().as_dict() == expected
  assert (resolver.task_type, resolver.task_id) == ('worker', 1)
  assert resolver.rpc_layer == 'grpc'


@pytest.mark.parametrize('task', [None, Task('chief', 0), Task('evaluator', 0)])
def test_tensorflow_is_told_of_no_task_that_the_cluster_does_not_list(task):
  resolver = Cluster({'ps': PS, 'worker': {1: 'h:1'}}, task).resolver()
  assert (resolver.task_type, resolver.task_id) == (None, None)


def test_tensorflow_is_told_nothing_of_a_job_of_unknown_tasks():
  cluster = Cluster({'ps': {2: 'h:1'}, 'worker': {}})
  assert cluster.spec().as_dict() == {'ps': {2: 'h:1'}}


def test_needs_no_tensorflow():
  program = (
    'import sys, tfps, tfps.cluster.resolver; '
    'tfps.Cluster.local().tf_config(); '
    'sys.exit("tensorflow" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', program], check=True, timeout=60)


def test_workers_without_ps_are_a_cluster_for_some_strategies():
  cluster = spec_lib.Cluster({'worker': WORKERS}, source='here')
  assert cluster.num_ps == 0
  with pytest.raises(ValueError, match=r'here: the job ps is missing .*worker'):
    cluster.check_has_ps()
  spec_lib.Cluster(GOOD).check_has_ps()


@pytest.mark.parametrize(
  'cluster',
  [
    Cluster(GOOD, Task('ps', 1), source='TF_CONFIG'),
    Cluster({'ps': {2: 'h:1'}, 'worker': {}}),
    Cluster.local(),
  ],
  ids=['of a task', 'in part', 'local'],
)
def test_copies_are_equal(cluster):
  for other in (copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):
    assert other == cluster
    assert other.source == cluster.source
    assert hash(other) == hash(cluster)
