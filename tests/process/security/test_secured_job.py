"""A launched job whose tasks only mutual TLS connects."""

import contextlib
import gzip
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys

import grpc
import pytest

from tests.support import enclosures
from tests.support import waiting
from tfps._utils import ports
from tfps._utils import processes
from tfps.cluster import spec as spec_lib
from tfps.security import certificates

pytestmark = enclosures.needed()

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'secured.py'
_DEADLINE_SECS = 200


class _Job:
  """A running job."""

  def __init__(self, process, output):
    self.process = process
    self._output = output

  def said(self):
    return self._output.read_text()

  def until(self, pattern, number=1):
    waiting.until(
      lambda: len(re.findall(pattern, self.said(), re.M)) >= number,
      timeout_secs=_DEADLINE_SECS,
      say=self.said,
    )
    return re.findall(pattern, self.said(), re.M)

  def cluster(self):
    (config,) = self.until(r'TF_CONFIG=(\{.*\})')
    return spec_lib.Cluster.from_tf_config({'TF_CONFIG': config})

  def ps_pids(self, number=1):
    return [int(pid) for pid in self.until(r'^\[ps:0\] pid (\d+)$', number)]

  def trains_on(self):
    """Returns once it is 50 steps further."""
    at = max(map(int, self.until(r' at (\d+)$')))
    waiting.until(
      lambda: max(map(int, self.until(r' at (\d+)$'))) >= at + 50,
      timeout_secs=_DEADLINE_SECS,
      say=self.said,
    )


@contextlib.contextmanager
def _running(folder, *words, steps):
  path = folder / 'output'
  command = [
    *(sys.executable, '-m', 'tfps.launch'),
    *('--num_chiefs=0', '--max_restarts=2', *words),
    *map(str, (_PROGRAM, steps, folder / 'snapshots')),
  ]
  with path.open('wb') as output:
    process = processes.spawn(
      command, env=os.environ, stdout=output, cwd=folder
    )
  try:
    yield _Job(process, path)
  finally:
    processes.kill(process)


def _call(address, credentials=None):
  """The code of a call of a ps' server, by gRPC, with a channel's options."""
  options = [
    ('grpc.ssl_target_name_override', 'ps-0.tfps'),
    ('grpc.use_local_subchannel_pool', 1),
    ('grpc.enable_http_proxy', 0),
  ]
  if credentials is None:
    channel = grpc.insecure_channel(address, options=options)
  else:
    channel = grpc.secure_channel(address, credentials, options=options)
  with channel:
    call = channel.unary_unary('/tensorflow.WorkerService/GetStatus')
    try:
      call(b'', timeout=30, wait_for_ready=False)
    except grpc.RpcError as error:
      return error.code()
  return grpc.StatusCode.OK


def _credentials(ca, folder=None, task=enclosures.OBSERVER):
  if folder is None:
    return grpc.ssl_channel_credentials((ca / 'ca.pem').read_bytes())
  cert, key = certificates.paths(folder, task)
  return grpc.ssl_channel_credentials(
    (ca / 'ca.pem').read_bytes(), key.read_bytes(), cert.read_bytes()
  )


@pytest.mark.parametrize(
  'form',
  [
    'namespaces',
    pytest.param(
      'preload', marks=[pytest.mark.exhaustive, enclosures.preloads()]
    ),
  ],
)
def test_intruders_and_the_loss_of_a_ps_change_no_count(
  tmp_path, monkeypatch, form
):
  monkeypatch.setenv('TFPS_ENCLOSURE', form)
  certs = enclosures.make(tmp_path / 'certs')
  late = spec_lib.Task('evaluator', 1)
  enclosures.make(certs, late, valid_hours=-0.5)
  other = enclosures.make(tmp_path / 'other')
  intruders = {
    'plain gRPC': None,
    'no certificate': _credentials(certs),
    'another CA': _credentials(certs, other),
    'expired': _credentials(certs, certs, late),
  }
  with _running(tmp_path, f'--secure_directory={certs}', steps=1200) as job:
    ps = job.cluster().address(enclosures.PS)
    job.until(r' at 50$')
    for name, credentials in intruders.items():
      assert _call(ps, credentials) is grpc.StatusCode.UNAVAILABLE, name
    assert _call(ps, _credentials(certs, certs)) is grpc.StatusCode.OK
    job.until('refused a connection', len(intruders))
    job.trains_on()
    os.kill(job.ps_pids()[0], signal.SIGKILL)
    assert job.process.wait(_DEADLINE_SECS) == 0, job.said()
    assert 'ps:0 was lost and is back' in job.said()
    assert '[worker:0] values 1200 1200 1200\n' in job.said()


def _shown(line, words):
  """What a command says in place of the one that the launcher has shown."""
  assert line.endswith(' tfps top')
  line = line.removesuffix('top') + words
  done = subprocess.run(
    line.replace(' tfps ', f' {sys.executable} -m tfps.cli '),
    shell=True,
    capture_output=True,
    text=True,
    timeout=_DEADLINE_SECS,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.exhaustive
def test_a_job_is_observed_from_outside_as_long_as_it_runs(tmp_path):
  with _running(tmp_path, '--secure', steps=100_000) as job:
    job.until(r' at 50$')
    (line,) = job.until(r'To look at them: (.*) \(or tfps dump\)$')
    assert _shown(line, 'top --once --json').count('"alive"') == 2
    trace = tmp_path / 'trace.json'
    shown = _shown(line, f'trace --secs=1 --output={trace}')
    assert '1 s of ps:0, worker:0' in shown
    assert json.loads(gzip.decompress(trace.read_bytes()))['traceEvents']
    job.process.terminate()
    assert job.process.wait(_DEADLINE_SECS) == 143
    folder = pathlib.Path(re.search(r'TFPS_CA=(\S+)', line)[1]).parent
    assert not folder.exists()


def _page(port, certs, *, is_member):
  """The facts of the page of worker:0."""
  context = ssl.create_default_context(cafile=certs / 'ca.pem')
  if is_member:
    context.load_cert_chain(*certificates.paths(certs, enclosures.OBSERVER))
  with (
    socket.create_connection(('127.0.0.1', port), 30) as peer,
    context.wrap_socket(peer, server_hostname='worker-0.tfps') as secured,
  ):
    secured.sendall(b'GET /data HTTP/1.0\r\nHost: worker-0.tfps\r\n\r\n')
    with secured.makefile('rb') as answer:
      text = answer.read()
  return json.loads(text.partition(b'\r\n\r\n')[2])


@pytest.mark.exhaustive
def test_the_page_of_a_job_is_shown_to_its_members_alone(tmp_path):
  certs = enclosures.make(tmp_path / 'certs')
  port = ports.pick()
  words = (f'--secure_directory={certs}', f'--dashboard_port={port}')
  with _running(tmp_path, *words, steps=100_000) as job:
    job.until(rf'A page of the job: https://127.0.0.1:{port} on localhost$')
    job.until(r' at 50$')
    found = _page(port, certs, is_member=True)
    states = {task['task']: task['state'] for task in found['tasks']}
    assert states == {'ps:0': 'alive', 'worker:0': 'alive'}
    assert found['placement']['ps:0']['num_variables'] > 1
    with pytest.raises(OSError):
      _page(port, certs, is_member=False)
    job.trains_on()


@pytest.mark.exhaustive
def test_a_frozen_ps_is_found(tmp_path):
  words = ('--secure', '--silent_secs=2', '--num_workers=2')
  with _running(tmp_path, *words, steps=100_000) as job:
    job.until(r' at 50$')
    os.kill(job.ps_pids()[0], signal.SIGSTOP)
    job.until('ps:0 has not answered for 2 seconds. Killing it')
    job.ps_pids(2)
    job.trains_on()
