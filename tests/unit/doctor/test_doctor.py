import json
import os
import socket

from absl import flags
import portpicker
import pytest

from tfps import doctor
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib


def _flags(*words):
  flag_values = flags.FlagValues()
  resolver.define_flags(flag_values)
  flag_values(['program', *words])
  return flag_values


def _examine(env, *words):
  """What is found out about a cluster, by topic."""
  findings = doctor.examine_cluster(env, _flags(*words), timeout_secs=2)
  return {finding.topic: finding for finding in findings}


def _free_address():
  return f'localhost:{portpicker.pick_unused_port()}'


def test_alone_nothing_is_wrong():
  findings = _examine({})
  assert findings['cluster'].text == (
    'one local task; from no flags, TF_CONFIG or Slurm'
  )
  assert findings['task'].text == 'chief:0'
  assert not any(finding.wrong for finding in findings.values())


def test_a_task_that_does_not_answer_is_wrong():
  with socket.create_server(('localhost', 0)) as silent:
    address = f'localhost:{silent.getsockname()[1]}'
    jobs = {'ps': [address], 'worker': [_free_address()]}
    task = spec_lib.Task('worker', 0)
    env = {'TF_CONFIG': spec_lib.Cluster(jobs, task).tf_config()}
    findings = _examine(env)
  assert findings['ps:0'].text == f'{address} does not answer'
  assert findings['ps:0'].wrong


def test_our_own_task_is_not_asked():
  ps, worker = _free_address(), _free_address()
  findings = _examine(
    {},
    '--job_name=ps',
    '--task_index=0',
    f'--ps_hosts={ps}',
    f'--worker_hosts={worker}',
  )
  assert findings['task'].text == 'ps:0'
  assert 'ps:0' not in findings
  assert findings['worker:0'].wrong


@pytest.mark.parametrize(
  ('env', 'complaint'),
  [
    pytest.param({'TF_CONFIG': '{'}, 'TF_CONFIG', id='no JSON'),
    pytest.param(
      {'TF_CONFIG': json.dumps({'cluster': {'ps': ['h:1']}})},
      'the job worker is missing',
      id='no workers',
    ),
  ],
)
def test_a_cluster_that_cannot_be_is_wrong(env, complaint):
  findings = _examine(env)
  assert list(findings) == ['cluster']
  assert findings['cluster'].wrong
  assert complaint in findings['cluster'].text


def test_a_tensorflow_that_cannot_be_imported_is_wrong(tmp_path):
  (tmp_path / 'tensorflow.py').write_text('raise ImportError("no AVX")')
  env = os.environ | {'PYTHONPATH': str(tmp_path)}
  findings = {f.topic: f for f in doctor.examine_machine(env)}
  assert findings['devices'].wrong
  assert findings['devices'].text == (
    'TensorFlow failed with status 1: ImportError: no AVX'
  )


@pytest.mark.parametrize(
  'word', ['--job_nam=ps', 'surplus', '--timeout_secs=x']
)
def test_wrong_options_are_named(capsys, word):
  with pytest.raises(SystemExit) as caught:
    doctor.main([word])
  assert caught.value.code == 2
  assert word.strip('-').partition('=')[0] in capsys.readouterr().err
