import pytest

from tfps.cluster import slurm
from tfps.cluster import spec as spec_lib

Task = spec_lib.Task

ENV = {
  'SLURM_PROCID': '2',
  'SLURM_NODEID': '1',
  'SLURM_STEP_NODELIST': 'n[9-10]',
  'SLURM_STEP_TASKS_PER_NODE': '2(x2)',
  'SLURM_STEP_RESV_PORTS': '12000-12001',
}
JOBS = {'ps': 1, 'worker': 3}


@pytest.mark.parametrize(
  ('text', 'hosts'),
  [
    ('n1', ['n1']),
    ('n1,m2', ['n1', 'm2']),
    ('n[1-3,7],m2', ['n1', 'n2', 'n3', 'n7', 'm2']),
    ('n[9-11]', ['n9', 'n10', 'n11']),
    ('n[08-10]', ['n08', 'n09', 'n10']),
    ('n[007,1]', ['n007', 'n1']),
    ('n10,n2', ['n10', 'n2']),
    ('n[10,2]', ['n10', 'n2']),
    ('rack[0-1]n[0-1]', ['rack0n0', 'rack0n1', 'rack1n0', 'rack1n1']),
    ('n[1-2]-ib.example.org', ['n1-ib.example.org', 'n2-ib.example.org']),
    ('a[1],b,c[2-3]', ['a1', 'b', 'c2', 'c3']),
    ('[1-2]', ['1', '2']),
  ],
)
def test_expands_hosts_in_slurms_order(text, hosts):
  assert slurm.expand_hosts(text, 'X') == hosts


@pytest.mark.parametrize(
  'text',
  [
    '',
    ',',
    'n1,',
    ',n1',
    'n[1-3',
    'n1-3]',
    'n[]',
    'n[1-]',
    'n[-3]',
    'n[a-b]',
    'n[1,,3]',
    'n[1-2-3]',
    'n[1[2-3]]',
    'n 1',
    'n1, n2',
  ],
)
def test_refuses_malformed_hosts(text):
  with pytest.raises(ValueError) as caught:
    slurm.expand_hosts(text, 'SLURM_STEP_NODELIST')
  for word in [f'SLURM_STEP_NODELIST={text!r}', 'Write it as Slurm does']:
    assert word in str(caught.value)


@pytest.mark.parametrize(
  ('text', 'word'),
  [
    ('n[3-1]', '3-1'),
    ('n[0-999999999]', '999999999'),
    ('n[0-999][0-999]', 'n[0-999][0-999]'),
  ],
)
def test_refuses_ranges_that_fall_or_burst(text, word):
  with pytest.raises(ValueError) as caught:
    slurm.expand_hosts(text, 'SLURM_STEP_NODELIST')
  for part in ['SLURM_STEP_NODELIST', word, 'Write a']:
    assert part in str(caught.value)


@pytest.mark.parametrize(
  ('text', 'counts'),
  [('3', [3]), ('2(x3),1', [2, 2, 2, 1]), ('1,4(x2)', [1, 4, 4])],
)
def test_expands_tasks_per_node(text, counts):
  assert slurm.expand_counts(text, 'X') == counts


@pytest.mark.parametrize(
  'text', ['', 'x', '0', '-1', '2(3)', '2(x)', '2(x0)', '2(x3', '2x3', '1,,2']
)
def test_refuses_malformed_counts(text):
  with pytest.raises(ValueError) as caught:
    slurm.expand_counts(text, 'SLURM_STEP_TASKS_PER_NODE')
  for word in [f'SLURM_STEP_TASKS_PER_NODE={text!r}', 'as in 2(x3),1']:
    assert word in str(caught.value)


@pytest.mark.parametrize(
  ('text', 'ports'),
  [
    ('12000', [12000]),
    ('12000-12002', [12000, 12001, 12002]),
    ('12000-12001,12010', [12000, 12001, 12010]),
    ('[7-8]', [7, 8]),
  ],
)
def test_expands_ports(text, ports):
  assert slurm.expand_ports(text, 'X') == ports


@pytest.mark.parametrize(
  'text', ['', 'x', '0', '12002-12000', '65536', '1-99999', '1-2-3', '1,,2']
)
def test_refuses_malformed_ports(text):
  with pytest.raises(ValueError) as caught:
    slurm.expand_ports(text, 'SLURM_STEP_RESV_PORTS')
  for word in [f'SLURM_STEP_RESV_PORTS={text!r}', 'as in 12000-12002']:
    assert word in str(caught.value)


@pytest.mark.parametrize(
  ('text', 'jobs'),
  [
    ('ps:1,worker:2', {'ps': 1, 'worker': 2}),
    ('chief:1, ps:2 ,worker:4', {'chief': 1, 'ps': 2, 'worker': 4}),
    ('evaluator:1,ps:1,worker:1', {'evaluator': 1, 'ps': 1, 'worker': 1}),
  ],
)
def test_reads_jobs(text, jobs):
  assert list(slurm.parse_jobs(text, 'X').items()) == list(jobs.items())


@pytest.mark.parametrize(
  ('text', 'value', 'remedy'),
  [
    ('ps', "'ps'", 'Write it as'),
    ('ps:0,worker:1', "'ps:0'", 'Write it as'),
    ('ps:-1,worker:1', "'ps:-1'", 'Write it as'),
    ('ps:x', "'ps:x'", 'Write it as'),
    ('ps:1,,worker:1', "''", 'Write it as'),
    ('ps:1,ps:2', "'ps:2'", 'Write it as'),
    ('ps=1,worker=1', "'ps=1'", 'Write it as'),
    ('pss:1', "'pss'", 'Use one of'),
    ('master:1', 'master', 'Write chief'),
  ],
)
def test_refuses_malformed_jobs(text, value, remedy):
  with pytest.raises(ValueError) as caught:
    slurm.parse_jobs(text, 'TFPS_JOBS')
  for word in ['TFPS_JOBS', value, remedy]:
    assert word in str(caught.value)


def test_deals_processes_out_to_jobs():
  cluster = spec_lib.Cluster.from_slurm(ENV, JOBS)
  assert cluster.task == Task('worker', 1)
  assert cluster.jobs == {
    'ps': {0: 'n9:12000'},
    'worker': {0: 'n9:12001', 1: 'n10:12000', 2: 'n10:12001'},
  }


@pytest.mark.parametrize(
  ('process', 'task'),
  [
    ('0', Task('evaluator', 0)),
    ('1', Task('chief', 0)),
    ('2', Task('ps', 0)),
    ('3', Task('worker', 0)),
  ],
)
def test_evaluator_has_a_process_but_no_address(process, task):
  env = {**ENV, 'SLURM_PROCID': process, 'SLURM_NODEID': str(int(process) // 2)}
  jobs = {'evaluator': 1, 'chief': 1, 'ps': 1, 'worker': 1}
  cluster = spec_lib.Cluster.from_slurm(env, jobs)
  assert cluster.task == task
  assert cluster.jobs == {
    'chief': {0: 'n9:12001'},
    'ps': {0: 'n10:12000'},
    'worker': {0: 'n10:12001'},
  }


@pytest.mark.parametrize(
  ('change', 'jobs', 'words'),
  [
    pytest.param({n: ''}, JOBS, [n, 'not set', 'by srun'], id=f'no {n}')
    for n in ENV
    if n not in ('SLURM_NODEID', 'SLURM_STEP_RESV_PORTS')
  ]
  + [
    pytest.param(
      {'SLURM_PROCID': '4'},
      JOBS,
      ["SLURM_PROCID='4'", 'by srun'],
      id='process id out of range',
    ),
    pytest.param(
      {'SLURM_PROCID': 'x'},
      JOBS,
      ['SLURM_PROCID', "'x'", 'Give a whole number'],
      id='process id is a word',
    ),
    pytest.param(
      {'SLURM_NODEID': '0'},
      JOBS,
      ['SLURM_NODEID=0', '--distribution=block'],
      id='processes dealt in turns',
    ),
    pytest.param(
      {'SLURM_STEP_NODELIST': 'n9'},
      JOBS,
      ["SLURM_STEP_NODELIST='n9'", 'names 1 nodes', 'by srun'],
      id='fewer nodes than counts',
    ),
    pytest.param(
      {'SLURM_STEP_RESV_PORTS': '12000'},
      JOBS,
      ["SLURM_STEP_RESV_PORTS='12000'", '--resv-ports=2'],
      id='too few ports',
    ),
    pytest.param(
      {},
      {'ps': 1, 'worker': 1},
      ["{'ps': 1, 'worker': 1}", '2(x2)', 'Change the jobs'],
      id='fewer jobs than processes',
    ),
    pytest.param(
      {},
      {'ps': 2, 'worker': 3},
      ["{'ps': 2, 'worker': 3}", '2(x2)', '--ntasks'],
      id='more jobs than processes',
    ),
    pytest.param(
      {},
      {'ps': 4},
      ["Slurm with jobs {'ps': 4}", 'worker is missing', 'Give the address'],
      id='no worker',
    ),
  ],
)
def test_refuses_a_broken_step(change, jobs, words):
  with pytest.raises(ValueError) as caught:
    spec_lib.Cluster.from_slurm({**ENV, **change}, jobs)
  for word in words:
    assert word in str(caught.value)


_WITHOUT_PORTS = {
  **ENV,
  'SLURM_STEP_RESV_PORTS': '',
  'SLURM_JOB_ID': '4242',
  'SLURM_STEP_ID': '0',
}


def _ports(**env):
  cluster = spec_lib.Cluster.from_slurm({**_WITHOUT_PORTS, **env}, JOBS)
  return [int(cluster.address(t).split(':')[1]) for t in cluster.tasks()]


def test_without_reserved_ports_they_follow_from_job_and_step(caplog):
  caplog.set_level('INFO', logger='absl')
  first, *others = _ports()
  assert others == [first + 1, first, first + 1]  # two nodes have the same
  assert f'take {first} to {first + 1} on each node' in caplog.text
  assert _ports(SLURM_PROCID='0', SLURM_NODEID='0') == [first, *others]


def test_steps_that_run_at_the_same_time_have_other_ports():
  found = [
    _ports(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step))
    for job in range(7000, 7030)
    for step in range(3)
  ]
  taken = [port for ports in found for port in set(ports)]
  assert len(set(taken)) == len(taken) == 2 * len(found)
  assert min(taken) >= 10_000
  assert max(taken) < 32_000


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'SLURM_JOB_ID': ''}, ['SLURM_JOB_ID is not set', 'by srun']),
    ({'SLURM_STEP_ID': 'x'}, ['SLURM_STEP_ID', "'x'", 'Give a whole number']),
    (
      {
        'SLURM_STEP_TASKS_PER_NODE': '30000',
        'SLURM_STEP_NODELIST': 'n1',
        'SLURM_NODEID': '0',
      },
      ['30000 tasks on one node', '--resv-ports=30000'],
    ),
  ],
)
def test_refuses_what_no_ports_follow_from(changes, words):
  with pytest.raises(ValueError) as caught:
    slurm.parse({**_WITHOUT_PORTS, **changes}, JOBS)
  for word in words:
    assert word in str(caught.value)


# Of a step whose first component has n3, as Slurm 22.05 gave it.
_HETEROGENEOUS = {
  'SLURM_HET_SIZE': '2',
  'SLURM_JOB_NODELIST_HET_GROUP_0': 'n3',
  'SLURM_JOB_NODELIST_HET_GROUP_1': 'n[1-2]',
  'SLURM_STEP_NODELIST': 'n[1-3]',
  'SLURM_STEP_TASKS_PER_NODE': '1(x2),2',
  'SLURM_STEP_RESV_PORTS': '12011-12014',
  'SLURM_PROCID': '2',
  'SLURM_NODEID': '1',
}


def test_processes_of_components_go_on_from_one_to_the_next():
  cluster = spec_lib.Cluster.from_slurm(_HETEROGENEOUS, {'ps': 2, 'worker': 2})
  assert cluster.task == Task('worker', 0)
  assert cluster.jobs == {
    'ps': {0: 'n3:12011', 1: 'n3:12012'},
    'worker': {0: 'n1:12013', 1: 'n2:12013'},
  }


@pytest.mark.parametrize(
  ('changes', 'jobs', 'addresses'),
  [
    pytest.param(
      {
        'SLURM_STEP_NODELIST': 'n3',
        'SLURM_STEP_TASKS_PER_NODE': '2',
        'SLURM_STEP_RESV_PORTS': '12011-12012',
        'SLURM_PROCID': '1',
        'SLURM_NODEID': '0',
      },
      {'ps': 1, 'worker': 1},
      ['n3:12011', 'n3:12012'],
      id='one component',
    ),
    pytest.param(
      {
        'SLURM_STEP_NODELIST': 'n[1,3]',
        'SLURM_STEP_TASKS_PER_NODE': '1,2',
      },
      {'ps': 2, 'worker': 1},
      ['n3:12011', 'n3:12012', 'n1:12013'],
      id='part of a component',
    ),
  ],
)
def test_a_step_may_have_a_part_of_a_heterogeneous_job(
  changes, jobs, addresses
):
  cluster = spec_lib.Cluster.from_slurm({**_HETEROGENEOUS, **changes}, jobs)
  assert [cluster.address(task) for task in cluster.tasks()] == addresses


def test_without_reserved_ports_components_have_the_same():
  env = {
    **_HETEROGENEOUS,
    'SLURM_STEP_RESV_PORTS': '',
    'SLURM_JOB_ID': '9',
    'SLURM_STEP_ID': '0',
  }
  cluster = spec_lib.Cluster.from_slurm(env, {'ps': 2, 'worker': 2})
  addresses = [cluster.address(task).split(':') for task in cluster.tasks()]
  assert [host for host, _ in addresses] == ['n3', 'n3', 'n1', 'n2']
  first, second, *others = [port for _, port in addresses]
  assert int(second) == int(first) + 1
  assert others == [first, first]


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    pytest.param(
      {'SLURM_HET_SIZE': 'two'},
      ['SLURM_HET_SIZE', "'two'", 'Give a whole number'],
      id='no number',
    ),
    pytest.param(
      {'SLURM_JOB_NODELIST_HET_GROUP_1': ''},
      ['SLURM_JOB_NODELIST_HET_GROUP_1 is not set', 'by srun'],
      id='no nodes of a component',
    ),
    pytest.param(
      {'SLURM_JOB_NODELIST_HET_GROUP_1': 'n[1-'},
      ["SLURM_JOB_NODELIST_HET_GROUP_1='n[1-'", 'Write it as Slurm does'],
      id='malformed nodes',
    ),
    pytest.param(
      {'SLURM_JOB_NODELIST_HET_GROUP_1': 'n1'},
      ["SLURM_STEP_NODELIST='n[1-3]' has n2,", 'own script'],
      id='a node of no component',
    ),
    pytest.param(
      {'SLURM_STEP_RESV_PORTS': '12011-12013'},
      ['has 3 ports for 2 tasks', '--resv-ports=2 in each of 2 components'],
      id='too few ports',
    ),
    pytest.param(
      {'SLURM_NODEID': '2'},
      ['SLURM_NODEID=2 for SLURM_PROCID=2', '--distribution=block'],
      id='processes dealt in turns',
    ),
  ],
)
def test_refuses_a_broken_heterogeneous_step(changes, words):
  with pytest.raises(ValueError) as caught:
    slurm.parse({**_HETEROGENEOUS, **changes}, {'ps': 2, 'worker': 2})
  for word in words:
    assert word in str(caught.value)
