import json
import logging

from absl import flags
import pytest

from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib

Task = spec_lib.Task

HOSTS = ['--ps_hosts=p:1,p:2', '--worker_hosts=w:1,w:2']
CLUSTER = {'ps': ['p:1', 'p:2'], 'worker': ['w:1', 'w:2']}
SLURM = {
  'SLURM_PROCID': '0',
  'SLURM_STEP_NODELIST': 'n1',
  'SLURM_STEP_TASKS_PER_NODE': '2',
  'SLURM_STEP_RESV_PORTS': '7-8',
  'TFPS_JOBS': 'ps:1,worker:1',
}


def parsed_flags(*args):
  flag_values = flags.FlagValues()
  resolver.define_flags(flag_values)
  flag_values(['program', *args])
  return flag_values


def resolve(*args, env=None):
  return resolver.resolve_cluster(env or {}, parsed_flags(*args))


def tf_config(**config):
  return {'TF_CONFIG': json.dumps(config)}


def test_local_task_when_nothing_is_said():
  assert resolve() == spec_lib.Cluster.local()


def test_flags():
  cluster = resolve('--job_name=worker', '--task_index=1', *HOSTS)
  assert cluster.task == Task('worker', 1)
  assert cluster.tf_config() == json.dumps(
    {'cluster': CLUSTER, 'task': {'type': 'worker', 'index': 1}}
  )


@pytest.mark.parametrize('job', ['chief', 'evaluator'])
def test_single_tasks_need_no_index(job):
  assert resolve(f'--job_name={job}', *HOSTS).task == Task(job, 0)


@pytest.mark.parametrize('job', ['worker', 'chief', 'evaluator'])
def test_workers_need_no_ps(job):
  args = [f'--job_name={job}', '--task_index=0', '--worker_hosts=w:1,w:2']
  cluster = resolve(*args, '--chief_hosts=c:1')
  assert (cluster.num_workers, cluster.num_ps) == (2, 0)
  with pytest.raises(ValueError, match='job ps is missing'):
    cluster.check_has_ps()


def test_flags_list_a_chief():
  cluster = resolve('--job_name=chief', '--chief_hosts=c:1', *HOSTS)
  assert cluster.address(Task('chief', 0)) == 'c:1'


def test_flags_take_spaces_and_ipv6():
  cluster = resolve(
    '--job_name=chief', '--ps_hosts=p:1, [::1]:2', '--worker_hosts=w:1'
  )
  assert cluster.address(Task('ps', 1)) == '[::1]:2'


def classic_flags(*args):
  """Flags that the program defined itself, as the old documents do."""
  flag_values = flags.FlagValues()
  flags.DEFINE_string('job_name', '', '', flag_values=flag_values)
  flags.DEFINE_integer('task_index', 0, '', flag_values=flag_values)
  for job in ('ps', 'worker'):
    flags.DEFINE_string(f'{job}_hosts', '', '', flag_values=flag_values)
  resolver.define_flags(flag_values)
  flag_values(['program', *args])
  return flag_values


def test_flags_of_a_classic_program():
  flag_values = classic_flags('--job_name=ps', *HOSTS)
  cluster = resolver.resolve_cluster({}, flag_values)
  assert (cluster.task, cluster.num_ps) == (Task('ps', 0), 2)


def test_defaults_of_a_classic_program_say_nothing():
  cluster = resolver.resolve_cluster({}, classic_flags())
  assert cluster == spec_lib.Cluster.local()


def test_defining_flags_twice_is_harmless():
  flag_values = flags.FlagValues()
  resolver.define_flags(flag_values)
  resolver.define_flags(flag_values)
  flag_values(['program', '--job_name=chief', *HOSTS])
  assert resolver.resolve_cluster({}, flag_values).num_workers == 2


def test_needs_no_flags():
  env = tf_config(cluster=CLUSTER, task={'type': 'ps', 'index': 0})
  cluster = resolver.resolve_cluster(env, flags.FlagValues())
  assert cluster.task == Task('ps', 0)


@pytest.mark.parametrize(
  ('args', 'env', 'task'),
  [
    pytest.param(
      ['--job_name=chief', *HOSTS],
      {**tf_config(cluster=CLUSTER, task={'type': 'ps', 'index': 0}), **SLURM},
      Task('chief', 0),
      id='flags before TF_CONFIG',
    ),
    pytest.param(
      [],
      {**tf_config(cluster=CLUSTER, task={'type': 'ps', 'index': 1}), **SLURM},
      Task('ps', 1),
      id='TF_CONFIG before Slurm',
    ),
    pytest.param([], SLURM, Task('ps', 0), id='Slurm before local'),
    pytest.param(
      [],
      {**SLURM, 'TFPS_JOBS': ''},
      Task('chief', 0),
      id='Slurm without TFPS_JOBS',
    ),
    pytest.param(
      [],
      {'TFPS_JOBS': 'ps:1,worker:1'},
      Task('chief', 0),
      id='TFPS_JOBS without Slurm',
    ),
    pytest.param(
      [], {'TF_CONFIG': ' '}, Task('chief', 0), id='blank TF_CONFIG'
    ),
  ],
)
def test_precedence(args, env, task):
  assert resolve(*args, env=env).task == task


@pytest.mark.parametrize(
  ('config', 'task', 'jobs'),
  [
    pytest.param(
      {
        'cluster': {'worker': {'1': 'w:1'}, 'ps': ['p:1']},
        'task': {'type': 'worker', 'index': 1},
      },
      Task('worker', 1),
      {'worker': {1: 'w:1'}, 'ps': {0: 'p:1'}},
      id='sparse worker',
    ),
    pytest.param(
      {
        'sparseCluster': {'worker': {'1': 'w:1'}, 'ps': ['p:1', 'p:2']},
        'task': {'type': 'worker', 'index': 1},
      },
      Task('worker', 1),
      {'worker': {1: 'w:1'}, 'ps': {0: 'p:1', 1: 'p:2'}},
      id='TFJob worker',
    ),
    pytest.param(
      {
        'sparseCluster': {'worker': {}, 'ps': ['p:2']},
        'task': {'type': 'ps', 'index': 1},
      },
      Task('ps', 1),
      {'worker': {}, 'ps': {1: 'p:2'}},
      id='TFJob ps knows only itself',
    ),
    pytest.param(
      {
        'cluster': CLUSTER,
        'task': {'type': 'ps', 'index': '1'},
        'environment': 'cloud',
      },
      Task('ps', 1),
      {'ps': {0: 'p:1', 1: 'p:2'}, 'worker': {0: 'w:1', 1: 'w:2'}},
      id='index as a string and a key that is not ours',
    ),
  ],
)
def test_forms_of_tf_config(config, task, jobs):
  cluster = resolve(env=tf_config(**config))
  assert cluster.task == task
  assert cluster.jobs == jobs


def test_says_once_which_source_won(caplog):
  with caplog.at_level(logging.INFO, logger='absl'):
    resolve(env=tf_config(cluster=CLUSTER, task={'type': 'ps', 'index': 0}))
  (record,) = caplog.records
  for word in ['ps:0', 'w:2', 'TF_CONFIG']:
    assert word in record.getMessage()


@pytest.mark.parametrize(
  ('args', 'words'),
  [
    pytest.param(
      ['--job_name=ps', '--task_index=0'],
      ['--job_name=ps', '--ps_hosts is missing', 'with --ps_hosts='],
      id='no hosts',
    ),
    pytest.param(
      ['--job_name=ps', '--task_index=0', '--ps_hosts=p:1'],
      ['--ps_hosts=p:1', '--worker_hosts is missing', 'with --worker_hosts='],
      id='no worker hosts',
    ),
    pytest.param(
      ['--job_name=ps', '--task_index=0', '--worker_hosts=w:1'],
      ['--worker_hosts=w:1', '--ps_hosts is missing', 'with --ps_hosts='],
      id='no ps hosts',
    ),
    pytest.param(
      ['--job_name=ps', '--task_index=0', '--ps_hosts=', '--worker_hosts=w:1'],
      ['--worker_hosts=w:1', '--ps_hosts is missing or empty', 'Give every'],
      id='empty ps hosts',
    ),
    pytest.param(
      HOSTS,
      ['--ps_hosts=p:1,p:2', '--job_name is missing', 'with --job_name='],
      id='hosts without job',
    ),
    pytest.param(
      ['--chief_hosts=c:1'],
      ['--chief_hosts=c:1', '--job_name is missing', 'with --job_name='],
      id='only a chief host',
    ),
    pytest.param(
      ['--task_index=0'],
      ['--task_index=0', '--job_name is missing', 'with --job_name='],
      id='index without job',
    ),
    pytest.param(
      ['--job_name=worker', *HOSTS],
      ['--job_name=worker', '--task_index is missing', 'with --task_index='],
      id='worker without index',
    ),
    pytest.param(
      ['--job_name=worker', '--task_index=-1', *HOSTS],
      ['--task_index', '-1', 'Give a whole number'],
      id='negative index',
    ),
    pytest.param(
      ['--job_name=worker', '--task_index=2', *HOSTS],
      ['--task_index', 'worker:2', '2 worker tasks', 'Give one of its tasks'],
      id='index out of range',
    ),
    pytest.param(
      ['--job_name=chief', '--task_index=1', *HOSTS],
      ['--task_index', 'chief:1', 'Give one of its tasks'],
      id='second chief',
    ),
    pytest.param(
      ['--job_name=wrker', '--task_index=0', *HOSTS],
      ['--job_name', "'wrker'", 'Use one of'],
      id='unknown job',
    ),
    pytest.param(
      ['--job_name=master', '--task_index=0', *HOSTS],
      ['--job_name', 'master', 'Write chief'],
      id='old name of chief',
    ),
    pytest.param(
      ['--job_name=chief', '--ps_hosts=p:1', '--worker_hosts=w:1,w'],
      ['--worker_hosts: worker:1', "'w'", 'Write host:port'],
      id='host without port',
    ),
    pytest.param(
      ['--job_name=chief', '--ps_hosts=p:x', '--worker_hosts=w:1'],
      ['--ps_hosts: ps:0', "'p:x'", 'Write host:port'],
      id='bad port',
    ),
    pytest.param(
      ['--job_name=chief', '--ps_hosts=:1', '--worker_hosts=w:1'],
      ['--ps_hosts: ps:0', "':1'", 'Write host:port'],
      id='empty host',
    ),
    pytest.param(
      ['--job_name=chief', '--ps_hosts=p:1,', '--worker_hosts=w:1'],
      ['--ps_hosts: ps:1', "''", 'Write host:port'],
      id='trailing comma',
    ),
    pytest.param(
      ['--job_name=chief', '--ps_hosts=x:1', '--worker_hosts=x:1'],
      ['--worker_hosts', "'x:1'", 'ps:0 and worker:0', 'Give each task'],
      id='duplicate',
    ),
    pytest.param(
      ['--job_name=chief', '--chief_hosts=c:1,c:2', *HOSTS],
      ['--chief_hosts', '[0, 1]', 'Give one chief'],
      id='two chiefs',
    ),
  ],
)
def test_refuses_bad_flags(args, words):
  with pytest.raises(ValueError) as caught:
    resolve(*args)
  for word in words:
    assert word in str(caught.value)


def test_refuses_flags_that_are_not_parsed():
  flag_values = flags.FlagValues()
  resolver.define_flags(flag_values)
  with pytest.raises(ValueError, match=r'--job_name .* not parsed.*app.run'):
    resolver.resolve_cluster({}, flag_values)


PS_TASK = {'type': 'ps', 'index': 0}
BAD_TF_CONFIG = {
  'not JSON': ('{"cluster": ', ['{"cluster": ', 'is not JSON', 'Write it as']),
  'a path': ('/etc/tf.json', ['/etc/tf.json', 'is not JSON', 'Write it as']),
  'single quotes': ("{'cluster': {}}", ["{'cluster'", 'Write it as']),
  'long and not JSON': ('{' * 900, ['{{{...', 'is not JSON', 'Write it as']),
  'a list': ('[1, 2]', ['[1, 2]', 'not a JSON object', 'Write it as']),
  'null': ('null', ['null', 'not a JSON object', 'Write it as']),
  'name twice': (
    '{"cluster": {"ps": ["p:1"], "ps": ["p:2"]}}',
    ['"ps"', 'twice', 'Write it once'],
  ),
  'cluster is a list': (
    {'cluster': ['p:1'], 'task': PS_TASK},
    ['"cluster" is ["p:1"]', 'Write it as'],
  ),
  'sparse cluster is a string': (
    {'sparseCluster': 'p:1', 'task': PS_TASK},
    ['"sparseCluster" is "p:1"', 'Write it as'],
  ),
  'task is a string': (
    {'cluster': CLUSTER, 'task': 'ps:0'},
    ['"task" is "ps:0"', 'Write it as'],
  ),
  'task without type': (
    {'cluster': CLUSTER, 'task': {'index': 0}},
    ['{"index": 0}', 'without "type"', 'Write it as'],
  ),
  'task without index': (
    {'cluster': CLUSTER, 'task': {'type': 'ps'}},
    ['{"type": "ps"}', 'without "index"', 'Write it as'],
  ),
  'no task': ({'cluster': CLUSTER}, ['no task', 'p:1', 'Add "task"']),
  'nothing': ({}, ['no task', '{}', 'Add "task"']),
  'task of unknown job': (
    {'cluster': CLUSTER, 'task': {'type': 'server', 'index': 0}},
    ["'server'", 'Use one of'],
  ),
  'task type is a number': (
    {'cluster': CLUSTER, 'task': {'type': 1, 'index': 0}},
    ['names the job 1', 'Use one of'],
  ),
  'index is a word': (
    {'cluster': CLUSTER, 'task': {'type': 'ps', 'index': 'first'}},
    ["'first'", 'Give a whole number'],
  ),
  'index is a fraction': (
    {'cluster': CLUSTER, 'task': {'type': 'ps', 'index': 0.5}},
    ['0.5', 'Give a whole number'],
  ),
  'index is null': (
    {'cluster': CLUSTER, 'task': {'type': 'ps', 'index': None}},
    ['None', 'Give a whole number'],
  ),
  'index is negative': (
    {'cluster': CLUSTER, 'task': {'type': 'ps', 'index': -1}},
    ['-1', 'Give a whole number'],
  ),
  'index out of range': (
    {'cluster': CLUSTER, 'task': {'type': 'worker', 'index': 7}},
    ['worker:7', '2 worker tasks', 'Give one of its tasks'],
  ),
  'task without cluster': (
    {'task': PS_TASK},
    ['ps:0', '0 ps tasks', 'add its address'],
  ),
  'job is a string': (
    {'cluster': {**CLUSTER, 'ps': 'p:1'}, 'task': PS_TASK},
    ["'p:1'", 'Give a list'],
  ),
  'job is null': (
    {'cluster': {**CLUSTER, 'ps': None}, 'task': PS_TASK},
    ['job ps', 'None', 'Give a list'],
  ),
  'no task of a job that is needed': (
    {'cluster': {**CLUSTER, 'worker': []}, 'task': PS_TASK},
    ['worker is missing', 'Give the address'],
  ),
  'sparse index is a word': (
    {'cluster': {**CLUSTER, 'worker': {'one': 'w:1'}}, 'task': PS_TASK},
    ['job worker', "'one'", 'Give a whole number'],
  ),
  'sparse worker that is not us': (
    {
      'cluster': {**CLUSTER, 'worker': {'1': 'w:1'}},
      'task': {'type': 'worker', 'index': 0},
    },
    ['worker:0', 'worker indices 1', 'Give one of its tasks'],
  ),
  'address is a number': (
    {'cluster': {**CLUSTER, 'ps': [2222]}, 'task': PS_TASK},
    ['ps:0', '2222', 'Write host:port'],
  ),
  'address is an object': (
    {'cluster': {**CLUSTER, 'ps': [{}]}, 'task': PS_TASK},
    ['ps:0', '{}', 'Write host:port'],
  ),
  'chief of two names': (
    {
      'cluster': {**CLUSTER, 'master': ['m:1'], 'chief': ['c:1']},
      'task': PS_TASK,
    },
    ['chief and master', 'Remove one'],
  ),
  'address of a worker is empty': (
    {'cluster': {**CLUSTER, 'worker': ['w:1', '']}, 'task': PS_TASK},
    ['worker:1', 'it is empty'],
  ),
}


@pytest.mark.parametrize(
  ('config', 'words'), BAD_TF_CONFIG.values(), ids=BAD_TF_CONFIG
)
def test_refuses_bad_tf_config(config, words):
  text = config if isinstance(config, str) else json.dumps(config)
  with pytest.raises(ValueError) as caught:
    resolve(env={'TF_CONFIG': text})
  for word in ['TF_CONFIG', *words]:
    assert word in str(caught.value)


# As schedulers write it, with the line that the log has.
_MORE = {
  'evaluator of TonY': (
    {**CLUSTER, 'evaluator': ['e:1']},
    'the job evaluator is no part of the cluster',
  ),
  'TensorBoard': (
    {**CLUSTER, 'tensorboard': ['t:1']},
    'the job tensorboard is no part of the cluster',
  ),
  'empty jobs of tf-yarn': (
    {**CLUSTER, 'chief': [], 'evaluator': []},
    'the job chief has no tasks; the job evaluator is no part of the cluster',
  ),
  'chief of DLRover': (
    {**CLUSTER, 'chief': ['']},
    'the chief has no address, and needs none',
  ),
}


@pytest.mark.parametrize(('cluster', 'line'), _MORE.values(), ids=_MORE)
@pytest.mark.parametrize('job', ['ps', 'chief', 'evaluator'])
def test_what_is_no_part_of_a_cluster_is_left_out(cluster, line, job, caplog):
  caplog.set_level('INFO', logger='absl')
  config = {'cluster': cluster, 'task': {'type': job, 'index': 0}}
  found = resolve(env={'TF_CONFIG': json.dumps(config)})
  assert caplog.messages.count(f'TF_CONFIG: {line}.') == 1
  plain = resolve(env={'TF_CONFIG': json.dumps({**config, 'cluster': CLUSTER})})
  assert found == plain


def test_the_job_master_is_the_chief(caplog):
  caplog.set_level('INFO', logger='absl')
  for job in ('master', 'chief'):
    cluster = {**CLUSTER, 'master': ['m:1']}
    config = {'cluster': cluster, 'task': {'type': job, 'index': 0}}
    found = resolve(env={'TF_CONFIG': json.dumps(config)})
    assert found.task == Task('chief', 0)
    assert found.address(found.task) == 'm:1'
  assert 'the job master is taken for the chief' in caplog.text
