"""The library that makes Unix sockets of a program's TCP sockets."""

import os
import socket
import stat
import subprocess
import sys
import tempfile

import pytest

from tests.support import enclosures
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.security import doors
from tfps.security import preload

pytestmark = enclosures.preloads()

_WORKER = spec_lib.Task('worker', 0)
_DEADLINE_SECS = 60


class _Program:
  """Python programs that have the doors of worker:0.

  Its peer is ps:0 at 127.0.0.1.
  """

  def __init__(self, folder):
    self.folder = folder
    self.port, self.peer_port = ports.pick(), ports.pick()
    cluster = spec_lib.Cluster(
      {
        'worker': [f'127.0.0.2:{self.port}'],
        'ps': [f'localhost:{self.peer_port}'],
      },
      _WORKER,
    )
    self._doors = preload.Preloaded(doors.Plan.of(cluster, {}), folder)
    (self.out,) = self._doors.enter()

  def start(self, text, *args):
    return subprocess.Popen(
      [sys.executable, '-c', text, *map(str, args)],
      env={**os.environ, **self._doors.env(os.environ)},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def run(self, text, *args):
    process = self.start(text, *args)
    output, _ = process.communicate(timeout=_DEADLINE_SECS)
    assert process.returncode == 0
    return output


@pytest.fixture
def program():
  with tempfile.TemporaryDirectory() as folder:
    made = _Program(folder)
    with made.out:
      yield made


_LISTENS = """
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize('host', ['', '127.0.0.1', '::', '::1'])
def test_what_listens_is_on_no_network(program, host):
  with program.start(_LISTENS, host, 0) as process:
    port = int(process.stdout.readline())
    for family, address in (
      (socket.AF_INET, '127.0.0.1'),
      (socket.AF_INET6, '::1'),
    ):
      with socket.socket(family) as caller:
        assert caller.connect_ex((address, port))
    door = os.stat(f'{program.folder}/in-{port}')
    assert stat.S_ISSOCK(door.st_mode)
    assert stat.S_IMODE(door.st_mode) == 0o600
    process.stdin.close()


def test_a_port_that_the_proxy_has_is_the_programs_too(program):
  with (
    socket.create_server(('127.0.0.2', program.port)),
    program.start(_LISTENS, '', program.port) as process,
  ):
    assert int(process.stdout.readline()) == program.port
    with socket.socket(socket.AF_UNIX) as caller:
      caller.connect(f'{program.folder}/in-{program.port}')
    process.stdin.close()


def test_a_port_of_another_program_is_in_use(program):
  with socket.create_server(('127.0.0.1', 0)) as other:
    process = program.start(_LISTENS, '127.0.0.1', other.getsockname()[1])
    assert process.wait(_DEADLINE_SECS) == 1


def test_a_port_of_a_process_that_has_ended_is_free(program):
  port = ports.pick()
  for _ in range(2):
    with program.start(_LISTENS, '', port) as process:
      assert int(process.stdout.readline()) == port
      process.kill()
      process.wait()


_LISTENS_AGAIN = """
import os, socket
ports = set()
for _ in range(3):
  server = socket.socket()
  server.bind(('127.0.0.1', ports.pop() if ports else 0))
  server.listen()
  at = server.getsockname()
  ports.add(at[1])
  socket.create_connection(at, 30).close()
  number = len(os.listdir('/proc/self/fd'))
  server.close()
  assert len(os.listdir('/proc/self/fd')) == number - 2  # the port is free
  assert socket.socket().connect_ex(at) == 111
print('done')
"""


def test_a_port_can_be_used_again(program):
  assert program.run(_LISTENS_AGAIN) == 'done\n'


def test_a_port_that_another_program_has_since_is_its(program):
  with program.start(_LISTENS, '127.0.0.1', 0) as process:
    port = int(process.stdout.readline())
    process.kill()
  with socket.create_server(('127.0.0.1', port)):
    assert program.run(_CALLS, port, '127.0.0.1') == '0\n'


_TALKS_TO_ITSELF = """
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
at = server.getsockname()
def answer():
  peer, address = server.accept()
  with peer:
    assert peer.getsockname() == at
    assert peer.getpeername() == address and address[0] == '127.0.0.1'
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    peer.sendall(b'heard ' + peer.recv(100))
thread = threading.Thread(target=answer)
thread.start()
with socket.create_connection(at, 30) as caller:
  assert caller.getpeername() == at
  assert caller.getsockname()[0] == '127.0.0.1'
  caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  caller.sendall(b'hello')
  print(caller.recv(100).decode())
thread.join()
"""


def test_sockets_look_like_those_of_tcp(program):
  assert program.run(_TALKS_TO_ITSELF) == 'heard hello\n'


_SERVES_PAGES = """
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200)
    self.end_headers()
    self.wfile.write(self.address_string().encode())
server = http.server.ThreadingHTTPServer(('', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in range(20):
  url = f'http://localhost:{server.server_port}/'
  assert urllib.request.urlopen(url).read() == b'127.0.0.1'
print('done')
"""


def test_servers_of_pages_know_nothing_of_it(program):
  assert program.run(_SERVES_PAGES) == 'done\n'


_SHARES_A_PORT = """
import socket
made = []
for host, family in (('::', socket.AF_INET6), ('0.0.0.0', socket.AF_INET)) * 2:
  server = socket.socket(family)
  if family == socket.AF_INET6:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
  server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  port = made[0].getsockname()[1] if made else 0
  server.bind((host, port))
  server.listen()
  made.append(server)
for host in ('127.0.0.1', '::1'):
  socket.create_connection((host, port), 30).close()
print('done')
"""


def test_listeners_may_share_a_port(program):
  assert program.run(_SHARES_A_PORT) == 'done\n'


_CALLS = """
import socket, sys
for host in sys.argv[2:]:
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  with socket.socket(family) as caller:
    caller.settimeout(30)
    print(caller.connect_ex((host, int(sys.argv[1]))))
"""


def test_peers_are_reached_through_their_doors(program):
  hosts = ['127.0.0.1', 'localhost', '::1', '::ffff:127.0.0.1']
  assert program.run(_CALLS, program.peer_port, *hosts) == '0\n' * len(hosts)
  program.out.settimeout(0)
  for _ in hosts:
    program.out.accept()[0].close()


def test_ports_of_peers_are_theirs_alone(program):
  with socket.create_server(('127.0.0.3', program.peer_port)) as elsewhere:
    elsewhere.settimeout(0)
    assert program.run(_CALLS, program.peer_port, '127.0.0.3') == '111\n'
    with pytest.raises(BlockingIOError):
      elsewhere.accept()


def test_nothing_is_sent_where_a_door_is_gone(program):
  program.out.close()
  with socket.create_server(('127.0.0.1', program.peer_port)) as there:
    there.settimeout(0)
    assert program.run(_CALLS, program.peer_port, '127.0.0.1') == '111\n'
    os.unlink(f'{program.folder}/out-0')
    assert program.run(_CALLS, program.peer_port, '127.0.0.1') == '111\n'
    with pytest.raises(BlockingIOError):
      there.accept()


def test_other_networks_are_reached(program):
  with socket.create_server(('127.0.0.1', 0)) as other:
    port = other.getsockname()[1]
    assert program.run(_CALLS, port, '127.0.0.1') == '0\n'


def test_children_have_the_doors_as_well(program):
  text = (
    'import subprocess, sys\n'
    f'command = [sys.executable, "-c", {_CALLS!r}, *sys.argv[1:]]\n'
    'subprocess.run(command)'
  )
  with socket.create_server(('127.0.0.3', program.peer_port)):
    found = program.run(text, program.peer_port, '127.0.0.1', '127.0.0.3')
  assert found == '0\n111\n'


_WAITS = """
import asyncio, sys
async def main():
  async def answer(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()
  server = await asyncio.start_server(answer, '127.0.0.1', 0)
  at = server.sockets[0].getsockname()
  async def call(number):
    reader, writer = await asyncio.open_connection(*at)
    writer.write(f'{number}\\n'.encode())
    assert await reader.readline() == f'{number}\\n'.encode()
    writer.close()
  await asyncio.gather(*map(call, range(300)))
  print('done')
asyncio.run(main())
"""


def test_many_connections_at_once_are_made(program):
  assert program.run(_WAITS) == 'done\n'


def test_a_folder_with_a_long_name_is_refused(tmp_path):
  folder = tmp_path / ('long' * 30)
  folder.mkdir()
  with pytest.raises(ValueError, match='Set TMPDIR to a shorter one'):
    preload.Preloaded(doors.Plan((), {}), str(folder))
