"""What bad settings get: an error that names value, source and remedy."""

import json

import pytest
import tensorflow as tf

import tfps
from tfps import keras as keras_lib
from tfps import plan
from tfps import testing
from tfps.cluster import flags as flags_lib
from tfps.cluster import slurm
from tfps.cluster import spec
from tfps.cluster import topology
from tfps.input import per_worker
from tfps.training import hooks
from tfps.training import train_spec
from tfps.updates import attempts
from tfps.updates.sync import ps_state
from tfps.variables import partitioners
from tfps.variables import placement
from tfps.wire import codecs

_JOBS = {'ps': ['h0:1'], 'worker': ['h1:1']}
_CLUSTER = tfps.Cluster(_JOBS, None)
_SLURM = {
  'SLURM_PROCID': '0',
  'SLURM_NODEID': '0',
  'SLURM_STEP_NODELIST': 'n1',
  'SLURM_STEP_TASKS_PER_NODE': '2',
  'SLURM_STEP_RESV_PORTS': '12000-12001',
}


def _tf_config(value):
  text = value if isinstance(value, str) else json.dumps(value)
  return lambda: tfps.Cluster.from_tf_config({'TF_CONFIG': text})


def _slurm(jobs=None, **env):
  jobs = jobs or {'ps': 1, 'worker': 1}
  return lambda: tfps.Cluster.from_slurm({**_SLURM, **env}, jobs)


# What is called, and what its error says: value, source, remedy.
_CASES = {
  'a policy that is a name': (
    lambda: tfps.ParameterServerStrategy(_CLUSTER, updates='sync'),
    ("'sync'", 'updates', 'Give one of tfps.updates'),
  ),
  'a policy that is a class': (
    lambda: tfps.BetweenGraphStrategy(_CLUSTER, updates=tfps.updates.Sync),
    ('policies.Sync', 'updates', 'Give one of tfps.updates'),
  ),
  'a cluster without a job': (
    lambda: tfps.Cluster({'ps': ['h0:1']}, None),
    ('ps', 'worker', 'Give the address'),
  ),
  'jobs that are no mapping': (
    lambda: tfps.Cluster(['h0:1'], None),
    ("['h0:1']", 'jobs', 'Give a mapping'),
  ),
  'a job without tasks': (
    lambda: tfps.Cluster({**_JOBS, 'ps': []}, None),
    ('no tasks', 'ps', 'Give their addresses'),
  ),
  'addresses that are no list': (
    lambda: tfps.Cluster({**_JOBS, 'ps': 7}, None),
    ('7', 'ps', 'Give a list'),
  ),
  'an address without a port': (
    lambda: tfps.Cluster({**_JOBS, 'ps': ['h0']}, None),
    ("'h0'", 'ps:0', 'Write host:port'),
  ),
  'an address twice': (
    lambda: tfps.Cluster({'ps': ['h:1'], 'worker': ['h:1']}, None),
    ("'h:1'", 'ps:0', 'Give each task its own'),
  ),
  'two chiefs': (
    lambda: tfps.Cluster({**_JOBS, 'chief': ['h2:1', 'h3:1']}, None),
    ('[0, 1]', 'chief', 'Give one chief'),
  ),
  'an unknown job': (
    lambda: tfps.Cluster({**_JOBS, 'boss': ['h2:1']}, None),
    ("'boss'", 'job', 'Use one of'),
  ),
  'the old name of chief': (
    lambda: tfps.Cluster({**_JOBS, 'master': ['h2:1']}, None),
    ('master', 'job', 'Write chief'),
  ),
  'an evaluator in the cluster': (
    lambda: tfps.Cluster({**_JOBS, 'evaluator': ['h2:1']}, None),
    ('evaluator', 'job', 'Remove it'),
  ),
  'a task that is not in the cluster': (
    lambda: tfps.Cluster(_JOBS, tfps.Task('worker', 3)),
    ('worker:3', 'task', 'Give one of its tasks'),
  ),
  'a name that is no task': (
    lambda: spec.Task.parse('ps-0'),
    ("'ps-0'", 'task', 'Write'),
  ),
  'TF_CONFIG that is no JSON': (
    _tf_config('{"cluster"'),
    ('{"cluster"', 'TF_CONFIG', 'Write it as in'),
  ),
  'TF_CONFIG with a name twice': (
    _tf_config('{"task": 1, "task": 2}'),
    ('"task"', 'TF_CONFIG', 'Write it once'),
  ),
  'TF_CONFIG without a task index': (
    _tf_config({'cluster': _JOBS, 'task': {'type': 'ps'}}),
    ('"index"', 'TF_CONFIG', 'Write it as in'),
  ),
  'TF_CONFIG whose cluster is a list': (
    _tf_config({'cluster': [], 'task': {'type': 'ps', 'index': 0}}),
    ('[]', 'TF_CONFIG', 'Write it as in'),
  ),
  'TF_CONFIG with a negative index': (
    _tf_config({'cluster': _JOBS, 'task': {'type': 'ps', 'index': -1}}),
    ('-1', 'TF_CONFIG', 'Give a whole number'),
  ),
  'Slurm with too few tasks': (
    _slurm({'ps': 2, 'worker': 3}),
    ('5 tasks', 'SLURM_STEP_TASKS_PER_NODE', '--ntasks'),
  ),
  'Slurm with too few ports': (
    _slurm(SLURM_STEP_RESV_PORTS='12000'),
    ('12000', 'SLURM_STEP_RESV_PORTS', '--resv-ports=2'),
  ),
  'Slurm outside of srun': (
    _slurm(SLURM_PROCID='9'),
    ('9', 'SLURM_PROCID', 'srun'),
  ),
  'Slurm with odd hosts': (
    lambda: slurm.expand_hosts('n[1-', 'SLURM_STEP_NODELIST'),
    ('n[1-', 'SLURM_STEP_NODELIST', 'Write it as Slurm does'),
  ),
  'Slurm with odd counts': (
    lambda: slurm.expand_counts('2(y3)', 'SLURM_STEP_TASKS_PER_NODE'),
    ('2(y3)', 'SLURM_STEP_TASKS_PER_NODE', 'Write it as Slurm does'),
  ),
  'Slurm with odd ports': (
    lambda: slurm.expand_ports('99999', 'SLURM_STEP_RESV_PORTS'),
    ('99999', 'SLURM_STEP_RESV_PORTS', 'Write it as Slurm does'),
  ),
  'jobs for Slurm that are none': (
    lambda: slurm.parse_jobs('ps=2', 'TFPS_JOBS'),
    ('ps=2', 'TFPS_JOBS', 'Write it as in'),
  ),
  'a host of no task': (
    lambda: topology.Topology.of(
      tfps.Cluster(_JOBS, None), host_of={'ps:7': 'a'}
    ),
    ("'ps:7'", 'host_of', 'Name its tasks'),
  ),
  'a negative rate of inner steps': (
    lambda: tfps.updates.LocalSteps(2, inner_learning_rate=-1),
    ('-1', 'inner_learning_rate', 'Give a number above 0'),
  ),
  'an outer optimizer that is none': (
    lambda: tfps.updates.LocalSteps(2, inner_learning_rate=1, outer='sgd'),
    ("'sgd'", 'outer', 'keras.optimizers'),
  ),
  'no steps to accumulate': (
    lambda: tfps.updates.Accumulate(0),
    ('0', 'Accumulate: n', 'Give a number of steps'),
  ),
  'a negative number of backup workers': (
    lambda: tfps.updates.Sync(backup_workers=-1),
    ('-1', 'backup_workers', 'Give a number from 0 on'),
  ),
  'no time to wait for workers': (
    lambda: tfps.updates.Sync(timeout_secs=0),
    ('0', 'timeout_secs', 'Give a number of seconds'),
  ),
  'a negative lead': (
    lambda: tfps.updates.BoundedStaleness(-1),
    ('-1', 'max_lead', 'Give a number from 0 on'),
  ),
  'too many workers to synchronize': (
    lambda: ps_state.SyncState(tf.Variable, num_ps=1, num_workers=1025),
    ('1025', 'cluster', 'Use tfps.updates.Async'),
  ),
  'negative slots': (
    lambda: placement.ByteBalanced(num_slots=-1),
    ('-1', 'num_slots', 'Give 0 or more'),
  ),
  'racks without a rate': (
    lambda: placement.TopologyAware(rack_of={'a': 'b'}),
    ('None', 'rack_rate', 'Give both, or neither'),
  ),
  'no shards': (
    lambda: partitioners.FixedShards(0),
    ('0', 'FixedShards', 'Give at least 1'),
  ),
  'an axis that a shape lacks': (
    lambda: partitioners.FixedShards(2)(tf.TensorShape([]), tf.float32),
    ('()', 'FixedShards', 'Give an axis'),
  ),
  'recovery without a folder': (
    lambda: tfps.Recovery(''),
    ('empty', 'directory', 'Name a folder'),
  ),
  'recovery at no time': (
    lambda: tfps.Recovery('x', every_secs=0),
    ('0', 'every_secs', 'must be positive'),
  ),
  'too many replicas': (
    lambda: tfps.Recovery('x', replicas=2),
    ('2', 'replicas', 'must be 0 or 1'),
  ),
  'an unknown writer of snapshots': (
    lambda: tfps.Recovery('x', written_by='me'),
    ("'me'", 'written_by', "must be 'chief' or 'ps'"),
  ),
  'copies without replicas': (
    lambda: tfps.Recovery('x', replicate_every_secs=1),
    ('1', 'replicate_every_secs', 'needs replicas=1'),
  ),
  'ranges of nothing': (
    lambda: tfps.input.Ranges(0, 1),
    ('0', 'total', 'must be 1 or more'),
  ),
  'files that are not there': (
    lambda: tfps.input.Files('/nowhere/*'),
    ("'/nowhere/*'", 'files', 'list them'),
  ),
  'Parquet files that are not there': (
    lambda: tfps.input.Parquet('/nowhere/*'),
    ("'/nowhere/*'", 'paths', 'nothing matches'),
  ),
  'files of an unknown file system': (
    lambda: tfps.input.Files('nosuch://bucket/*'),
    ("'nosuch://bucket/*'", 'files', 'list the files'),
  ),
  'files that are no paths': (
    lambda: tfps.input.Files(7),
    ('7', 'files', 'give a path'),
  ),
  'a file that is no path': (
    lambda: tfps.input.Parquet(['/a', 7]),
    ("['/a', 7]", 'paths', 'give a path'),
  ),
  'a function of datasets that returns another thing': (
    lambda: per_worker.trace(lambda context: None, 1, 1),
    ('None', 'dataset_fn', 'Return one'),
  ),
  'a file twice': (
    lambda: tfps.input.Files(['/a', '/a']),
    ('/a', 'files', 'more than once'),
  ),
  'a codec that is none': (
    lambda: tfps.Wire(push='int8'),
    ("'int8'", 'push', 'Give one of tfps.codecs'),
  ),
  'a codec that cannot pull': (
    lambda: tfps.Wire(pull=codecs.TopK(0.1)),
    ('TopK', 'pull', 'Use it as push'),
  ),
  'too much prefetching': (
    lambda: tfps.Wire(prefetch=9),
    ('9', 'prefetch', 'Give 0, 1 or'),
  ),
  'a loop without steps': (
    lambda: tfps.Wire(unroll=0),
    ('0', 'unroll', 'Give a number of steps'),
  ),
  'codecs without fusing': (
    lambda: tfps.Wire(fuse=False, push=codecs.Int8()),
    ('False', 'fuse', 'Leave fuse at True'),
  ),
  'a ratio above one': (
    lambda: codecs.TopK(1.5),
    ('1.5', 'ratio', 'at most 1'),
  ),
  'feedback of what leaves nothing out': (
    lambda: codecs.ErrorFeedback('int8'),
    ("'int8'", 'ErrorFeedback', 'Give one'),
  ),
  'a block of odd bits': (
    lambda: codecs.OneBit(block=7),
    ('7', 'block', 'Give a multiple of'),
  ),
  'no steps to train': (
    lambda: train_spec.TrainSpec(steps=0),
    ('0', 'steps', 'must be 1 or more'),
  ),
  'too many steps at once for a step log': (
    lambda: attempts.Attempt(None, 2**24, is_logged=True),
    ('16777216', 'steps_per_execution', 'Give fewer'),
  ),
  'no steps to stop at': (
    lambda: keras_lib.StopAtStep(0),
    ('0', 'StopAtStep', 'Give 1 or more'),
  ),
  'a hook at no time': (
    lambda: hooks.Every(print),
    ('either', 'Every', 'give either secs or steps'),
  ),
  'a plan of nothing': (
    lambda: plan.Model([], 1),
    ('no variables', 'Model', 'Give one at least'),
  ),
  'a plan that computes backwards': (
    lambda: plan.Model.of_bytes(1e6, compute_secs=-1),
    ('-1', 'compute_secs', 'Give a number'),
  ),
  'a plan without workers': (
    lambda: plan.Job(
      plan.Model.of_bytes(1e6, compute_secs=1),
      num_workers=0,
      num_ps=1,
      links=plan.Links(1000),
    ),
    ('0', 'num_workers', 'Give at least 1'),
  ),
  'a plan whose codec cannot pull': (
    lambda: plan.Job(
      plan.Model.of_bytes(1e6, compute_secs=1),
      num_workers=1,
      num_ps=1,
      links=plan.Links(1000),
      pull=codecs.TopK(0.1),
    ),
    ('TopK', 'pull', 'Use it as push'),
  ),
  'an unknown fault': (
    lambda: testing.Fault('melt', tfps.Task('ps', 0), 1, 1),
    ("'melt'", 'fault', 'There are'),
  ),
  'a fault before the start': (
    lambda: testing.Fault('kill', tfps.Task('ps', 0), -1, 1),
    ('-1', 'at_secs', 'must not be negative'),
  ),
}


@pytest.mark.parametrize('name', _CASES)
def test_it_names_value_source_and_remedy(name):
  call, parts = _CASES[name]
  with pytest.raises((ValueError, TypeError)) as caught:
    call()
  message = str(caught.value)
  assert [part for part in parts if part not in message] == []


def test_flags_are_parsed_first():
  from absl import flags

  values = flags.FlagValues()
  tfps.define_flags(values)
  assert set(flags_lib.NAMES) <= set(values)
  with pytest.raises(ValueError, match=r'flags: .* not parsed\. Call '):
    tfps.resolve_cluster(env={}, flag_values=values)
