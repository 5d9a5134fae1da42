"""Enclosed tasks whose peers have names, and then other addresses."""

import pathlib
import sys
import threading

import pytest

from tests.support import enclosures
from tests.support import waiting
import tfps
from tfps._utils import ports
from tfps.cluster import spec as spec_lib

pytestmark = enclosures.needed()

_PS1 = spec_lib.Task('ps', 1)
# Answers each line at its address with what it is told to.
_ANSWER = """
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
address = sys.argv[1], int(sys.argv[2])
server = socket.create_server(address, family=family)
while True:
  peer, _ = server.accept()
  with peer, peer.makefile('rwb') as file:
    file.readline()
    file.write(sys.argv[3].encode())
"""
# Prints who answers at addresses, whenever it is another one.
_ASK = """
import socket, sys, time
said = {}
while True:
  for address in sys.argv[1:]:
    host, _, port = address.rpartition(':')
    try:
      with socket.create_connection((host, port), 5) as peer:
        peer.sendall(b'hello\\n')
        answer = peer.recv(100).decode()
    except OSError:
      answer = ''
    if answer and said.get(address) != answer:
      said[address] = answer
      print(f'{host} is {answer}', flush=True)
  time.sleep(0.05)
"""
_COUNTS = pathlib.Path(__file__).parents[2] / 'programs' / 'secured.py'
_DEADLINE_SECS = 60


@pytest.fixture(
  params=[
    'namespaces',
    pytest.param('preload', marks=enclosures.preloads()),
  ]
)
def form(request):
  return request.param


@pytest.fixture(scope='module')
def certs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('hosts') / 'certs'
  return enclosures.make(folder, enclosures.PS, _PS1, enclosures.WORKER)


@pytest.fixture
def begin():
  started = []

  def begin(*args, **kwargs):
    started.append(enclosures.start(*args, **kwargs))
    return started[-1]

  yield begin
  for process in started:
    process.kill()
    process.communicate()


@pytest.fixture
def hosts(tmp_path):
  path = tmp_path / 'hosts'
  path.touch()
  return path


@pytest.fixture
def network():
  with enclosures.network('fd00::2') as words:
    yield words


def _within(hosts):
  """The words of a command that runs another one, with a file of hosts."""
  mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
  return ['unshare', '-Urm', 'sh', '-c', mount, str(hosts)]


class _Asker:
  """An enclosed worker that asks all ps who they are.

  Attributes:
    lines: what it has printed.
    errors: what its enclosure has.
  """

  def __init__(self, process):
    self.lines, self.errors = [], []
    for stream, lines in (
      (process.stdout, self.lines),
      (process.stderr, self.errors),
    ):
      reader = threading.Thread(target=lines.extend, args=(stream,))
      reader.daemon = True
      reader.start()

  def wait_for(self, text):
    waiting.until(lambda: f'{text}\n' in self.lines, say=lambda: self.errors)


def test_peers_are_followed_to_new_addresses(
  begin, hosts, network, certs, form
):
  port = ports.pick()
  named = tfps.Cluster(
    {
      'ps': [f'first.example:{port}', f'second.example:{port}'],
      'worker': [f'127.0.0.5:{port}'],
    }
  )

  def serve(task, ip, answer):
    addresses = ['127.0.0.1:9'] * task.index + [f'{ip}:{port}']
    own = tfps.Cluster({'ps': addresses, 'worker': [f'127.0.0.9:{port}']})
    words = sys.executable, '-c', _ANSWER, ip.strip('[]'), port, answer
    begin(own, task, certs, *words, within=network, TFPS_ENCLOSURE=form)

  serve(enclosures.PS, '127.0.0.2', 'the first')
  serve(_PS1, '[fd00::2]', 'the second')
  asker = _Asker(
    begin(
      named,
      enclosures.WORKER,
      certs,
      *(sys.executable, '-c', _ASK, *map(named.address, named.tasks('ps'))),
      within=[*network, *_within(hosts)],
      TFPS_ENCLOSURE=form,
      TFPS_TIMEOUTS_SCALE='0.2',
    )
  )
  waiting.until(
    lambda: any('does not know' in line for line in asker.errors),
    say=lambda: asker.errors,
  )
  hosts.write_text('127.0.0.2 first.example\nfd00::2 second.example\n')
  asker.wait_for('first.example is the first')
  asker.wait_for('second.example is the second')

  serve(enclosures.PS, '127.0.0.4', 'the first elsewhere')
  # The other one has none now.
  hosts.write_text('127.0.0.4 first.example\n')
  asker.wait_for('first.example is the first elsewhere')
  assert len(asker.lines) == 3
  assert 'second.example is at' not in asker.errors[-1]


def test_no_peer_takes_the_place_of_another(begin, hosts, certs, form):
  port = ports.pick()
  cluster = tfps.Cluster(
    {
      'ps': [f'127.0.0.2:{port}', f'second.example:{port}'],
      'worker': [f'127.0.0.9:{port}'],
    }
  )
  words = sys.executable, '-c', _ANSWER, '127.0.0.2', port, 'the first'
  begin(cluster, enclosures.PS, certs, *words, TFPS_ENCLOSURE=form)
  hosts.write_text('127.0.0.2 second.example\n')
  asker = _Asker(
    begin(
      cluster,
      enclosures.WORKER,
      certs,
      *(sys.executable, '-c', _ASK, f'second.example:{port}'),
      f'127.0.0.2:{port}',
      within=_within(hosts),
      TFPS_ENCLOSURE=form,
    )
  )
  asker.wait_for('127.0.0.2 is the first')
  assert len(asker.lines) == 1


def test_a_job_trains_whose_hosts_are_named_late(begin, hosts, certs, tmp_path):
  cluster = tfps.Cluster(
    {
      'ps': [f'first.example:{ports.pick()}'],
      'worker': [f'second.example:{ports.pick()}'],
    }
  )
  words = sys.executable, _COUNTS, 20, tmp_path / 'snapshots'
  ps, worker = (
    begin(cluster, task, certs, *words, within=_within(hosts))
    for task in (enclosures.PS, enclosures.WORKER)
  )
  for line in ps.stderr:
    if 'does not know' in line:
      break
  hosts.write_text('127.0.0.1 first.example second.example\n')
  output, errors = worker.communicate(timeout=_DEADLINE_SECS)
  assert 'values 20 20 20\n' in output, errors
