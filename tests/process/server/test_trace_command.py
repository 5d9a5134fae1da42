"""Traces of a job that trains."""

import collections
import gzip
import json

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import waiting
import tfps
from tfps import testing
from tfps._compat import profiler
from tfps.server import trace_command
from tools import trace_picture

_WORKERS = ('worker:0', 'worker:1')
_PS = ('ps:0', 'ps:1')


def _arrows(trace):
  """Pairs of tasks between which tensors were sent, with their number."""
  arrows = trace_picture.arrows_of(trace)
  transfers = [e for e in trace['traceEvents'] if e.get('cat') == 'transfer']
  assert len(transfers) == 2 * len(arrows)  # each has both ends
  return collections.Counter((one.sender, one.receiver) for one in arrows)


def test_all_tasks_and_what_they_send_are_in_one_file(tmp_path, capfd):
  path, logs = tmp_path / 'trace.json.gz', tmp_path / 'logs'
  found = {}

  def trace(address):
    status = trace_command.main(
      [
        *(f'--address={address}', '--steps=20', '--timeout_secs=60'),
        *(f'--output={path}', f'--log_dir={logs}'),
      ]
    )
    if status:
      return False
    with gzip.open(path, 'rt') as file:
      found.update(json.load(file))
    assert trace_command.main([f'--address={address}', '--steps=99999999']) == 1
    arrows = _arrows(found)
    # An execution is in the trace as a whole, or without arrows.
    return all(
      arrows[worker, ps] and arrows[ps, worker]
      for worker in _WORKERS
      for ps in _PS
    )

  with testing.ProcessCluster(2, 2) as processes:
    strategy = tfps.ParameterServerStrategy(processes.cluster)
    with strategy.scope():
      variables = [tf.Variable(tf.ones([2])) for _ in _PS]

    def step(batch):
      total = tf.add_n([tf.reduce_sum(v.read_value()) for v in variables])
      for variable in variables:
        variable.assign(tf.stack([total, total]) / 4)

    address = processes.cluster.address(tfps.Task('ps', 1))
    with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
      losses.train_while(
        coordinator,
        step,
        lambda: waiting.until(lambda: trace(address), timeout_secs=120),
      )
    strategy.close()
  assert set(trace_picture.tasks_of(found).values()) == {
    'chief:0',
    *_WORKERS,
    *_PS,
  }
  said = capfd.readouterr()
  assert 's of chief:0, ps:0, ps:1, ' in said.out
  _, *rows = said.out.rpartition('% of the time')[2].splitlines()
  shares = {task: map(int, numbers) for task, *numbers in map(str.split, rows)}
  assert {*_WORKERS, *_PS} <= set(shares)
  for task in (*_WORKERS, *_PS):
    assert 95 <= sum(shares[task]) <= 105  # each is rounded
  assert 'tfps trace: --steps=99999999 take ' in said.err
  (kept, *_) = logs.glob('plugins/profile/*/ps-1.xplane.pb')
  assert profiler.parse(kept.read_bytes()).events


@pytest.mark.exhaustive
def test_a_job_that_does_no_steps_has_none_to_trace(tfps_cluster, capfd):
  address = tfps_cluster.cluster.address(tfps.Task('ps', 0))
  assert trace_command.main([f'--address={address}']) == 1
  assert 'no task has done a step' in capfd.readouterr().err


def test_a_job_of_which_nothing_is_there_is_told(monkeypatch, capfd):
  gone = {'ps': ['localhost:1'], 'worker': ['localhost:2']}
  task = {'type': 'worker', 'index': 0}
  monkeypatch.setenv('TF_CONFIG', json.dumps({'cluster': gone, 'task': task}))
  assert trace_command.main([]) == 1
  said = capfd.readouterr().err
  assert 'no task can be profiled: ps:0 is unreachable, worker:0 is un' in said


def test_a_server_that_is_not_there_is_named(capfd):
  assert trace_command.main(['--address=localhost:1']) == 1
  assert 'the server at localhost:1' in capfd.readouterr().err


@pytest.mark.parametrize(
  'option', ['--steps=0', '--steps=x', '--secs=-1', '--secs=61']
)
def test_a_wrong_option_is_refused(option, capfd):
  with pytest.raises(SystemExit, match='2'):
    trace_command.main([option])
  assert option.partition('=')[0] in capfd.readouterr().err
