"""Tasks as actors of a real Ray cluster, of two nodes on this machine."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile

from tests.launch import engine as engine_lib
from tests.support import waiting
from tfps._utils import ports

_LOOPBACK = '127.0.0.1'


class Ray(engine_lib.Engine):
  """`tfps launch --engine=ray` with RAY_ADDRESS."""

  name = 'ray'

  def missing(self):
    if importlib.util.find_spec('ray') is None:
      return "no ray: pip install 'tfps[ray]'"
    return ''

  @contextlib.contextmanager
  def up(self, folder, *, has_dashboard=False):
    self._head = folder / 'head'
    self._port, dashboard = _free_port(), _free_port()
    self.url = f'http://{_LOOPBACK}:{dashboard}'
    self.env = {'RAY_ADDRESS': f'{_LOOPBACK}:{self._port}', **_ENV}
    with tempfile.TemporaryDirectory(prefix='ray-') as short:  # for sockets
      head = [
        *('--head', f'--port={self._port}', f'--temp-dir={short}'),
        f'--include-dashboard={str(has_dashboard).lower()}',
        f'--dashboard-port={dashboard}',
      ]
      with (
        _node(head, self._head),
        self.another_node(folder / 'other'),
      ):
        yield

  @contextlib.contextmanager
  def another_node(self, log):
    """One more node, for a while."""
    waiting.until(  # else ray.init hangs
      self._answers, timeout_secs=90, say=self._head.read_text
    )
    before = _num_nodes(self.env)
    with _node([f'--address={_LOOPBACK}:{self._port}'], log) as process:
      waiting.until(
        lambda: _num_nodes(self.env) > before,
        timeout_secs=90,
        say=log.read_text,
      )
      yield process

  def _answers(self):
    try:
      socket.create_connection((_LOOPBACK, self._port), 5).close()
    except OSError:
      return False
    return True

  def run(self, folder, request):
    logs = folder / 'logs'
    command = request.command('--engine=ray', f'--log_dir={logs}')
    env = {**self.env, **request.env}
    return engine_lib.Launched(command, folder, logs, env)

  def mistakes(self):
    return [
      engine_lib.Mistake(
        'too few CPUs',
        r'no room for 5 tasks, which reserve 10 CPUs in all: it has 2 nodes',
        words=['--cpus_per_task=2'],
      ),
      engine_lib.Mistake(
        'too few GPUs',
        r'reserve 5 CPUs and 2 GPUs in all: .* and 0 GPUs are free',
        words=['--gpus_per_worker=1'],
      ),
      engine_lib.Mistake(
        'an unreachable cluster',
        r'RAY_ADDRESS=127.0.0.1:1: ',
        env={'RAY_ADDRESS': f'{_LOOPBACK}:1'},
      ),
    ]


_CPUS = 4
_END_OF_RAYS_PORTS = 20_000  # those below it are for Ray's workers
_ENV = {'RAY_AUTH_MODE': 'disabled', 'RAY_USAGE_STATS_ENABLED': '0'}


def _free_port():
  return next(p for p in iter(ports.pick, 0) if p >= _END_OF_RAYS_PORTS)


@contextlib.contextmanager
def _node(words, log):
  """Runs a node of four CPUs, for a while."""
  command = [
    *(sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block'),
    *(f'--num-cpus={_CPUS}', '--object-store-memory=100000000'),
    *('--disable-usage-stats', *words),
  ]
  with log.open('wb') as output:
    process = subprocess.Popen(
      command, env={**os.environ, **_ENV}, stdout=output, stderr=output
    )
  try:
    yield process
  finally:
    process.terminate()
    process.wait(30)


def _num_nodes(env):
  """Returns how many nodes of a cluster are alive; 0 if it does not answer."""
  program = (
    'import ray; ray.init(logging_level="ERROR"); '
    'print("nodes", sum(n["Alive"] for n in ray.nodes()))'
  )
  ran = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, **env},
    capture_output=True,
    text=True,
    timeout=60,
  )
  found = ran.stdout.split('nodes ')
  return int(found[1]) if len(found) == 2 else 0
