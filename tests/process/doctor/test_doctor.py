"""The doctor, on a cluster and about TensorFlow, and its command."""

from absl import flags
import portpicker
import pytest

from tfps import doctor
from tfps import testing
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


def test_living_tasks_are_alive_and_others_are_wrong():
  with testing.InProcessCluster(num_workers=1, num_ps=1) as running:
    jobs = dict(running.cluster.jobs)
    jobs['worker'] = [jobs['worker'][0], _free_address()]
    task = spec_lib.Task('chief', 0)
    env = {'TF_CONFIG': spec_lib.Cluster(jobs, task).tf_config()}
    findings = _examine(env)
  assert findings['cluster'].text == ('1 chief, 1 ps, 2 worker; from TF_CONFIG')
  assert findings['ps:0'].text.endswith(' is alive')
  assert not findings['ps:0'].wrong
  assert findings['worker:1'].text.endswith(' is unreachable')
  assert findings['worker:1'].wrong
  assert findings['security'].text == (
    'ps:0, worker:0 answered without TLS, as they do to everybody'
  )
  assert not findings['security'].wrong


@pytest.mark.exhaustive
def test_the_report_names_what_is_wrong(monkeypatch, capsys):
  monkeypatch.setenv('OMP_NUM_THREADS', '3')
  words = [
    *('--timeout_secs=1', '--job_name=worker', '--task_index=0'),
    f'--ps_hosts={_free_address()}',
    f'--worker_hosts={_free_address()}',
  ]
  assert doctor.main(words) == 1
  output = capsys.readouterr().out
  topics = [line[2:].split()[0] for line in output.splitlines()[:-2]]
  assert topics[:6] == [
    *('python', 'tfps', 'tensorflow', 'keras', 'devices', 'machine')
  ]
  assert 'CPU:0' in output
  assert 'environment OMP_NUM_THREADS=3' in output
  assert output.endswith('\n\nWrong: ps:0.\n')
