"""Environments of other frameworks, and how their tasks find each other."""

import json
import pathlib
import sys

import pytest

from benchmarks.peers import comparison
from benchmarks.peers import envs
from benchmarks.peers import launches


def test_what_needs_no_packages_runs_in_this_interpreter(tmp_path):
  environment = envs.Environment('own', 'json')
  assert environment.python(tmp_path, install=False) == sys.executable


def _installed(folder, installs):
  """An environment as if it had been installed."""
  home = folder / 'empty'
  (home / 'bin').mkdir(parents=True)
  (home / 'bin' / 'python').symlink_to(sys.executable)
  (home / 'installed.json').write_text(json.dumps(installs))
  return home


def test_an_environment_is_kept(tmp_path):
  home = _installed(tmp_path, [['x==1', 'y'], ['z']])
  environment = envs.Environment('empty', 'json', [('x==1', 'y'), ('z',)])
  python = environment.python(tmp_path, install=True)
  assert python == str(home / 'bin' / 'python')


def test_an_environment_with_other_packages_is_not_taken(tmp_path):
  _installed(tmp_path, [['x==1']])
  environment = envs.Environment('empty', 'json', [['x==2']])
  with pytest.raises(envs.MissingError, match='empty is not installed in'):
    environment.python(tmp_path, install=False)


@pytest.mark.parametrize(
  ('module', 'installs', 'reason'),
  [
    ('json', [['x']], 'x is not installed in'),
    ('no_such_module', [], "'no_such_module'"),
  ],
  ids=['not there', 'not importable'],
)
def test_what_cannot_be_had_says_why(tmp_path, module, installs, reason):
  environment = envs.Environment('x', module, installs)
  with pytest.raises(envs.MissingError, match=reason):
    environment.python(tmp_path, install=False)


@pytest.mark.exhaustive  # makes an environment, which takes long
def test_what_failed_to_install_is_not_taken_for_installed(tmp_path):
  environment = envs.Environment('x', 'json', [['--no-such']])
  with pytest.raises(envs.MissingError, match='no such option'):
    environment.python(tmp_path, install=True)
  assert (tmp_path / 'x' / 'bin' / 'python').exists()
  with pytest.raises(envs.MissingError, match='is not installed'):
    environment.python(tmp_path, install=False)


def test_peers_are_left_out_with_the_reason(monkeypatch):
  def missing(self, folder, *, install):
    raise envs.MissingError('no wheel')

  monkeypatch.setattr(envs.Environment, 'python', missing)
  pythons, left_out = comparison.interpreters(install=True)
  assert pythons == {}
  assert 'TorchRec 1.8 is left out: no wheel.' in left_out


@pytest.mark.parametrize('name', comparison.PEERS)
def test_each_peer_has_a_program(name):
  peer = comparison.PEERS[name]
  folder = pathlib.Path(comparison.__file__).parent
  assert (folder / f'{peer.program}.py').exists()
  assert set(launches.WORKERS) <= set(peer.launch())


def test_workers_of_torchrun_know_their_place():
  tasks = launches.torchrun()
  assert [env['RANK'] for _, env in tasks.values()] == ['0', '1']
  assert len({env['MASTER_PORT'] for _, env in tasks.values()}) == 1
  assert {env['MASTER_ADDR'] for _, env in tasks.values()} == {'127.0.0.1'}


def test_rpc_has_ps_besides():
  words = [arguments for arguments, _ in launches.torch_rpc().values()]
  assert words == [
    ['ps', '0'],
    ['ps', '1'],
    ['worker', '0'],
    ['worker', '1'],
  ]


def test_multi_worker_tasks_have_no_ps():
  configs = [
    json.loads(env['TF_CONFIG']) for _, env in launches.multi_worker().values()
  ]
  assert [config['task']['index'] for config in configs] == [0, 1]
  assert configs[0]['cluster'] == configs[1]['cluster']
  assert list(configs[0]['cluster']) == ['worker']


def test_tasks_of_parameter_servers_know_all_of_them():
  tasks = launches.parameter_servers()
  assert list(tasks) == ['ps:0', 'ps:1', 'worker:0', 'worker:1']
  configs = [json.loads(env['TF_CONFIG']) for _, env in tasks.values()]
  assert configs[1]['task'] == {'type': 'ps', 'index': 1}
  (addresses,) = {str(config['cluster']) for config in configs}
  assert addresses.count('127.0.0.1:') == 4


def test_paddle_has_a_port_for_each_task():
  tasks = launches.paddle()
  ports = [env['PADDLE_PORT'] for _, env in tasks.values()]
  assert len(set(ports)) == 4
  servers = {env['PADDLE_PSERVERS_IP_PORT_LIST'] for _, env in tasks.values()}
  assert servers == {f'127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}'}
