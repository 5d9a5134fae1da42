"""Enclosed programs: what reaches them, what they reach, and how they end."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys

from cryptography import x509
import psutil
import pytest

from tests.support import enclosures
from tests.support import processes
from tests.support import waiting
import tfps
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.security import certificates
from tfps.security import enclosure
from tfps.server import health
from tfps.server import health_command

pytestmark = enclosures.needed()

_COUNTS = pathlib.Path(__file__).parents[2] / 'programs' / 'secured.py'
_DEADLINE_SECS = 60
# Answers each line at its port with the same line.
_ECHO = """
import socket, sys
server = socket.create_server(('0.0.0.0', int(sys.argv[1])))
print('ready', flush=True)
while True:
  peer, _ = server.accept()
  with peer, peer.makefile('rwb') as file:
    file.write(b'heard ' + file.readline())
"""
_LISTEN = """
import socket, sys
server = socket.create_server(('0.0.0.0', int(sys.argv[1])))
"""
_SLEEP = """
import time
print('ready', flush=True)
time.sleep(600)
"""
# Sends a line to an address and prints the answer, if there is any.
_CALL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as peer:
  try:
    peer.sendall(b'hello\\n')
    print('answer', peer.recv(100))
  except ConnectionError:
    print('answer', b'')
"""


@pytest.fixture(scope='module')
def certs(tmp_path_factory):
  return enclosures.make(tmp_path_factory.mktemp('enclosure') / 'certs')


def _cluster(ps='localhost', worker='127.0.0.2'):
  return tfps.Cluster(
    {'ps': [f'{ps}:{ports.pick()}'], 'worker': [f'{worker}:{ports.pick()}']}
  )


@pytest.fixture(
  params=[
    'namespaces',
    pytest.param(
      'preload', marks=[pytest.mark.exhaustive, enclosures.preloads()]
    ),
  ]
)
def form(request):
  return request.param


@pytest.fixture
def start(certs, form):
  started = []

  def start(cluster, task, program, *args, folder=certs, **env):
    command = (sys.executable, '-c', program, *args)
    env['TFPS_ENCLOSURE'] = form
    process = enclosures.start(cluster, task, folder, *command, **env)
    started.append(process)
    return process

  yield start
  for process in started:
    process.kill()
    process.communicate()


def _env(cluster, certs):
  """The environment of ps:0."""
  config = cluster.with_task(enclosures.PS).tf_config()
  own = enclosures.credentials(certs, enclosures.PS)
  return {**own.env(), 'TF_CONFIG': config}


def _port(cluster, task=enclosures.PS):
  return cluster.address(task).rpartition(':')[2]


@pytest.fixture
def own_certs(tmp_path):
  return enclosures.make(tmp_path / r'its \ own')


def _expires_at(port):
  """When the certificate expires that a task shows, in seconds since 1970."""
  pem = ssl.get_server_certificate(('127.0.0.1', int(port)), timeout=30)
  certificate = x509.load_pem_x509_certificate(pem.encode())
  return certificate.not_valid_after_utc.timestamp()


@pytest.fixture
def echo(start):
  """A cluster in which ps:0 answers, and its process."""
  cluster = _cluster()
  process = start(cluster, enclosures.PS, _ECHO, _port(cluster))
  assert process.stdout.readline() == 'ready\n'
  return cluster, process


def _call(start, cluster, host, port, task=enclosures.WORKER, **options):
  process = start(cluster, task, _CALL, host, port, **options)
  output, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert process.returncode == 0, errors
  return output


def _answer(port, certs=None, task=enclosures.WORKER):
  """What is answered by TLS to a task's certificate; nothing if refused."""
  return _answer_in_session(port, _context(certs, task))[0]


def _context(certs, task=enclosures.WORKER):
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname = False
  context.verify_mode = ssl.CERT_NONE
  if certs:
    context.load_cert_chain(*certificates.paths(certs, task))
  return context


def _answer_in_session(port, context, session=None):
  """What is answered, and the session, which goes on with an earlier one."""
  with socket.create_connection(('127.0.0.1', int(port)), 30) as peer:
    try:
      with context.wrap_socket(peer, session=session) as secured:
        secured.sendall(b'hello\n')
        return secured.recv(100), secured.session
    except OSError:
      return b'', None


def _received(peer):
  try:
    return peer.recv(100)
  except ConnectionError:
    return b''


def _family(process):
  """The processes of an enclosure, once both proxies are."""

  def found():
    return psutil.Process(process.pid).children(recursive=True)

  waiting.until(lambda: [p.name() for p in found()].count('haproxy') == 2)
  return found()


@pytest.mark.parametrize('task', [enclosures.WORKER, enclosures.OBSERVER])
def test_tasks_of_a_job_reach_each_other(start, echo, task):
  cluster, _ = echo
  answer = _call(start, cluster, 'localhost', _port(cluster), task)
  assert answer == "answer b'heard hello\\n'\n"


def test_an_observer_serves_nothing(echo, certs, form):
  cluster, _ = echo
  process = enclosures.start(
    *(cluster, enclosures.PS, certs, sys.executable, '-c'),
    f'import os; print(os.environ["TF_CONFIG"])\n{_CALL}',
    *('localhost', _port(cluster)),
    options=['--observer', f'--form={form}'],
    TFPS_METRICS_PORT=_port(cluster),  # which ps:0 has, as its server's
  )
  output, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert process.returncode == 0, errors
  config, answer = output.splitlines()
  assert json.loads(config)['task'] == {'type': 'evaluator', 'index': 0}
  assert answer == "answer b'heard hello\\n'"


def test_hosts_are_known_by_name(start):
  name = socket.gethostname()
  cluster = _cluster(ps=name)
  process = start(cluster, enclosures.PS, _ECHO, _port(cluster))
  assert process.stdout.readline() == 'ready\n'
  assert 'heard' in _call(start, cluster, name, _port(cluster))


@pytest.fixture
def network():
  with enclosures.network('fd00::2', 'fd00::3') as words:
    yield words


@pytest.mark.parametrize(
  ('form', 'ps', 'worker'),
  [
    pytest.param(*case, marks=marks)
    for case, marks in {
      ('namespaces', '127.0.0.2', '127.0.0.3'): [pytest.mark.exhaustive],
      ('preload', '127.0.0.2', '127.0.0.3'): [enclosures.preloads()],
      ('namespaces', '[fd00::2]', '[fd00::3]'): [],
      ('preload', '[fd00::2]', '[fd00::3]'): [
        enclosures.preloads(),
        pytest.mark.exhaustive,
      ],
    }.items()
  ],
)
def test_tasks_on_several_hosts_may_have_one_port(
  certs, tmp_path, network, form, ps, worker
):
  port = ports.pick()
  cluster = tfps.Cluster(
    {'ps': [f'{ps}:{port}'], 'worker': [f'{worker}:{port}']}
  )
  command = (sys.executable, _COUNTS, 20, tmp_path / 'snapshots')
  own = {'within': network, 'TFPS_ENCLOSURE': form}
  with contextlib.ExitStack() as stack:
    tasks = [
      stack.enter_context(
        enclosures.start(cluster, task, certs, *command, **own)
      )
      for task in (enclosures.PS, enclosures.WORKER)
    ]
    for task in tasks:
      stack.callback(task.kill)
    output, errors = tasks[1].communicate(timeout=_DEADLINE_SECS)
    assert 'values 20 20 20\n' in output, errors
    assert tasks[0].wait(_DEADLINE_SECS) == 0


def test_without_tls_nothing_is_answered(echo):
  cluster, process = echo
  with socket.create_connection(('127.0.0.1', int(_port(cluster))), 30) as peer:
    peer.sendall(b'hello\n')
    assert not _received(peer)
  process.kill()
  assert 'ps:0 refused a connection from 127.0.0.1' in process.stderr.read()


@pytest.mark.parametrize(
  'make',
  [
    pytest.param(lambda folder: None, id='none'),
    pytest.param(enclosures.make, id='another CA'),
  ],
)
def test_without_a_certificate_of_the_job_nothing_is_answered(
  echo, certs, tmp_path, make
):
  cluster, _ = echo
  port = _port(cluster)
  assert not _answer(port, make(tmp_path / 'other'))
  assert _answer(port, certs) == b'heard hello\n'


def test_an_expired_certificate_is_not_answered(echo, certs):
  cluster, _ = echo
  late = spec_lib.Task('evaluator', 1)
  enclosures.make(certs, late, valid_hours=-0.5)
  assert not _answer(_port(cluster), certs, late)
  enclosures.make(certs, late)
  assert _answer(_port(cluster), certs, late) == b'heard hello\n'


def _start_echo(start, cluster, folder):
  port = _port(cluster)
  env = {'TFPS_TIMEOUTS_SCALE': '0.05'}
  process = start(cluster, enclosures.PS, _ECHO, port, folder=folder, **env)
  assert process.stdout.readline() == 'ready\n'
  return process


def _said(process, text):
  """Returns the line with a text that an enclosure says, once it does."""
  while line := process.stderr.readline():
    if text in line:
      return line
  raise AssertionError(f'It has ended without {text!r}.')


def test_a_program_without_a_server_is_not_taken_for_a_frozen_one(start, certs):
  # A supervisor would kill a task that takes long to start again.
  cluster = _cluster()
  process = start(cluster, enclosures.PS, _SLEEP)
  assert process.stdout.readline() == 'ready\n'
  credentials = enclosures.credentials(certs, enclosures.WORKER)
  address = {enclosures.PS: cluster.address(enclosures.PS)}
  _expires_at(_port(cluster))  # its door is open
  with enclosure.called_through(address, credentials) as addresses:
    states = [health.probe_all(addresses)[0].state for _ in range(3)]
  assert states == [health.State.DEAD] * 3


@pytest.mark.parametrize(
  ('program', 'says', 'states'),
  [
    (_LISTEN + _SLEEP, 'does not answer within 1 seconds.', (False, False)),
    (_SLEEP, 'does not run.', (False, True)),
  ],
  ids=['frozen', 'not running'],
)
def test_probes_ask_by_tls(start, certs, program, says, states):
  cluster = _cluster()
  process = start(cluster, enclosures.PS, program, _port(cluster))
  assert process.stdout.readline() == 'ready\n'
  _expires_at(_port(cluster))  # its door is open
  found = [
    health_command.check(_env(cluster, certs), live=live, timeout_secs=1)
    for live in (False, True)
  ]
  assert tuple(healthy for healthy, _ in found) == states
  assert found[1][1].endswith(says)


def test_a_server_is_not_frozen_because_of_its_certificate(tmp_path):
  env = _env(_cluster(), enclosures.make(tmp_path / 'late', valid_hours=-0.5))
  for live in (False, True):
    healthy, text = health_command.check(env, live=live, timeout_secs=1)
    assert healthy == live
    assert 'certificate has expired' in text


def test_certificates_are_renewed_while_the_program_runs(start, own_certs):
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  first = _expires_at(_port(cluster))
  enclosures.make(own_certs, valid_hours=1)
  _said(process, 'ps-0.pem is renewed')
  assert _expires_at(_port(cluster)) < first
  port = _port(cluster)
  assert _answer(port, own_certs) == b'heard hello\n'


def test_another_ca_takes_the_place_of_one(start, own_certs, tmp_path):
  """What is renewed proves, and is proved by, the new one alone."""
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  other = enclosures.make(tmp_path / 'other')
  old = shutil.copytree(own_certs, tmp_path / 'old')
  for path in other.iterdir():
    path.replace(own_certs / path.name)
  _said(process, 'ps-0.pem is renewed')
  assert not _answer(_port(cluster), old)
  assert _answer(_port(cluster), own_certs) == b'heard hello\n'


def test_a_session_of_before_is_not_resumed(start, own_certs, tmp_path):
  # It would not show a certificate again, whatever became of that.
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  context, port = _context(own_certs), _port(cluster)
  answer, session = _answer_in_session(port, context)
  assert answer == b'heard hello\n'
  for file in enclosures.make(tmp_path / 'other').iterdir():
    file.replace(own_certs / file.name)
  _said(process, 'ps-0.pem is renewed')
  assert _answer_in_session(port, context, session) == (b'', None)


def test_who_calls_tasks_from_outside_takes_another_ca_too(
  start, own_certs, tmp_path, set_timeouts
):
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  address = {enclosures.PS: cluster.address(enclosures.PS)}
  credentials = enclosures.credentials(own_certs, enclosures.WORKER)
  set_timeouts(credentials_every_secs=0.2)

  def answer(path):
    with (
      contextlib.suppress(ConnectionError),
      socket.socket(socket.AF_UNIX) as caller,
    ):
      caller.settimeout(30)
      caller.connect(path)
      caller.sendall(b'hello\n')
      return caller.recv(100)

  with enclosure.called_through(address, credentials) as addresses:
    path = addresses[enclosures.PS].removeprefix('unix:')
    waiting.until(lambda: answer(path) == b'heard hello\n')
    for file in enclosures.make(tmp_path / 'other').iterdir():
      file.replace(own_certs / file.name)
    _said(process, 'ps-0.pem is renewed')
    waiting.until(lambda: answer(path) == b'heard hello\n')


def test_both_cas_are_accepted_while_one_takes_the_place_of_the_other(
  start, own_certs, tmp_path
):
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  other = enclosures.make(tmp_path / 'other')
  ca = own_certs / 'ca.pem'
  both = tmp_path / 'both.pem'
  both.write_bytes(ca.read_bytes() + (other / 'ca.pem').read_bytes())
  both.replace(ca)
  _said(process, 'ps-0.pem is renewed')
  for folder in (own_certs, other):
    assert _answer(_port(cluster), folder) == b'heard hello\n'


def test_credentials_that_peers_would_refuse_are_not_taken(
  start, own_certs, tmp_path
):
  cluster = _cluster()
  process = _start_echo(start, cluster, own_certs)
  before = _expires_at(_port(cluster))
  other = enclosures.make(tmp_path / 'other')
  (other / 'ps-0.pem').replace(own_certs / 'ps-0.pem')
  assert 'are not used: TFPS_CA' in _said(process, 'credentials')
  assert _expires_at(_port(cluster)) == before
  assert _answer(_port(cluster), own_certs) == b'heard hello\n'


def test_another_task_does_not_serve_in_place_of_a_ps(start, certs):
  """It has a certificate of the job, and the address of the ps."""
  cluster = _cluster()
  worker = cluster.address(enclosures.WORKER)
  ps = cluster.address(enclosures.PS)
  swapped = tfps.Cluster({'ps': [worker], 'worker': [ps]})
  process = start(swapped, enclosures.WORKER, _ECHO, _port(cluster))
  assert process.stdout.readline() == 'ready\n'
  call = 'localhost', _port(cluster)
  observer = enclosures.OBSERVER
  assert _call(start, cluster, *call, observer) == "answer b''\n"
  assert 'heard' in _call(start, swapped, *call, observer)


@pytest.mark.exhaustive
def test_connections_that_prove_nothing_keep_nobody_out(start, echo):
  cluster, process = echo
  address = ('127.0.0.1', int(_port(cluster)))
  with contextlib.ExitStack() as stack:
    idle = [
      stack.enter_context(socket.create_connection(address, 30))
      for _ in range(300)
    ]
    assert 'heard' in _call(start, cluster, 'localhost', _port(cluster))
    assert not any(map(_received, idle))  # which are closed in the end
  process.kill()
  refused = 'ps:0 refused a connection'
  assert process.stderr.read().count(refused) == len(idle)


@pytest.mark.parametrize('form', ['namespaces'])
def test_the_program_has_no_other_network(start):
  with socket.create_server(('127.0.0.1', 0)) as outside:
    port = outside.getsockname()[1]
    program = (
      f'import socket\nprint(socket.socket().connect_ex(("127.0.0.1", {port})))'
    )
    process = start(_cluster(), enclosures.WORKER, program)
    output, _ = process.communicate(timeout=_DEADLINE_SECS)
  assert output == '111\n'  # ECONNREFUSED


@pytest.mark.parametrize(
  'variable', ['TFPS_METRICS_PORT', 'TFPS_DASHBOARD_PORT']
)
def test_what_is_watched_is_reached_with_a_certificate(start, certs, variable):
  cluster, port = _cluster(), ports.pick()
  env = {variable: str(port)}
  process = start(cluster, enclosures.PS, _ECHO, str(port), **env)
  assert process.stdout.readline() == 'ready\n'
  assert _answer(port, certs) == b'heard hello\n'
  assert _answer(port) == b''


def test_the_status_is_that_of_the_program(start):
  process = start(_cluster(), enclosures.PS, 'raise SystemExit(7)')
  assert process.wait(_DEADLINE_SECS) == 7


def test_a_signal_that_ends_the_program_is_in_the_status(start):
  program = 'import os; os.kill(os.getpid(), 9)'
  process = start(_cluster(), enclosures.PS, program)
  assert process.wait(_DEADLINE_SECS) == 137


def test_a_pipe_that_nobody_reads_ends_the_program(certs, form):
  command = ['sh', '-c', 'kill -s PIPE $$']
  process = enclosures.start(
    _cluster(), enclosures.PS, certs, *command, TFPS_ENCLOSURE=form
  )
  _, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert (process.returncode, errors) == (141, '')


def test_a_program_that_is_not_there_is_named(certs, form):
  process = enclosures.start(
    _cluster(), enclosures.PS, certs, 'no-such', TFPS_ENCLOSURE=form
  )
  _, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert process.returncode == 1
  assert 'tfps enclose: no-such: [Errno' in errors


def test_sigterm_is_passed_on(start):
  program = (
    'import signal, sys, time\n'
    'signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n'
    'print("ready", flush=True)\n'
    'time.sleep(600)'
  )
  process = start(_cluster(), enclosures.PS, program)
  assert process.stdout.readline() == 'ready\n'
  process.terminate()
  assert process.wait(_DEADLINE_SECS) == 5


def test_everything_ends_with_the_enclosure(echo):
  _, process = echo
  family = _family(process)
  process.kill()
  processes.wait_for_end(family)


def test_a_program_without_its_proxy_is_ended(echo):
  _, process = echo
  family = _family(process)
  next(each for each in family if each.name() == 'haproxy').kill()
  assert process.wait(_DEADLINE_SECS) == 137
  assert 'haproxy' in process.stderr.read()
  processes.wait_for_end(family)


def test_no_key_is_copied_to_a_disk(start, tmp_path, form):
  """Which would stay there when the enclosure is killed."""
  cluster = _cluster(ps=socket.gethostname())
  task, port = enclosures.PS, _port(cluster)
  process = start(cluster, task, _ECHO, port, TMPDIR=str(tmp_path))
  assert process.stdout.readline() == 'ready\n'
  _family(process)
  process.kill()
  process.wait()
  if form == 'namespaces':
    assert not list(tmp_path.iterdir())
  else:
    files = [path for path in tmp_path.rglob('*') if path.is_file()]
    assert [path.name for path in files] == ['doors.so']


def test_a_task_with_the_certificate_of_another_is_refused(start, certs):
  env = enclosures.credentials(certs, enclosures.WORKER).env()
  process = start(_cluster(), enclosures.PS, 'print("ran")', **env)
  output, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert (process.returncode, output) == (1, '')
  assert "not valid for 'ps-0.tfps'" in errors


def test_a_machine_without_haproxy_is_told_so(start):
  program = (
    'import shutil, sys\n'
    'shutil.which = lambda *args, **options: None\n'
    'from tfps.security import enclose_command\n'
    'sys.exit(enclose_command.main(["ls"]))'
  )
  process = start(_cluster(), enclosures.PS, program)
  _, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert process.returncode == 1
  assert 'apt-get install haproxy' in errors


def test_a_form_that_is_not_known_is_refused(certs):
  process = enclosures.start(
    _cluster(), enclosures.PS, certs, 'ls', TFPS_ENCLOSURE='container'
  )
  _, errors = process.communicate(timeout=_DEADLINE_SECS)
  assert process.returncode == 1
  assert "TFPS_ENCLOSURE is 'container'. Give namespaces or preload" in errors


# Within its own user namespace, a process may forbid further ones.
_WITHOUT_NAMESPACES = """
import sys
from tfps.security import enclose_command, namespaces
namespaces.enter_new()
namespaces.set_up_loopback([])
open('/proc/sys/user/max_user_namespaces', 'w').write('0')
sys.exit(enclose_command.main([sys.executable, '-c', 'print("ran")']))
"""


def _without_namespaces(certs, **env):
  return subprocess.run(
    [sys.executable, '-c', _WITHOUT_NAMESPACES],
    env={
      **os.environ,
      **enclosures.credentials(certs, enclosures.PS).env(),
      'TF_CONFIG': _cluster().with_task(enclosures.PS).tf_config(),
      **env,
    },
    capture_output=True,
    text=True,
  )


@enclosures.preloads()
def test_doors_are_preloaded_where_namespaces_are_not_allowed(certs):
  done = _without_namespaces(certs)
  assert (done.returncode, done.stdout) == (0, 'ran\n'), done.stderr
  assert 'doors are preloaded. This machine does not let' in done.stderr


@pytest.mark.parametrize(
  ('env', 'why'),
  [
    pytest.param({'TFPS_ENCLOSURE': 'namespaces'}, '', id='asked for'),
    pytest.param(
      {'PATH': '', 'CC': ''}, 'there is no C compiler', id='no compiler'
    ),
    pytest.param({'CC': 'false'}, 'false -O2', id='a compiler that fails'),
  ],
)
def test_a_machine_that_allows_no_form_is_told_why(certs, env, why):
  done = _without_namespaces(certs, **env)
  assert (done.returncode, done.stdout) == (1, '')
  assert 'does not let this user make network namespaces' in done.stderr
  assert why in done.stderr
