"""The web page of a job: its server, its port, and who may see it."""

import http.client
import json
import re
import socket

from absl import flags
import portpicker
import pytest

from tests.support import waiting
import tfps
from tfps.monitor import dashboard

_FACTS = {'task': 'chief:0', 'history': []}


def _source(after):
  return {**_FACTS, 'after': after}


@pytest.fixture(autouse=True)
def no_page():
  """Begins and ends without a page of this process."""
  dashboard._serve_once.cache_clear()
  yield
  dashboard._serve_once.cache_clear()


@pytest.fixture(scope='module')
def make_server():
  """Starts servers of a page until all tests have ended."""
  servers = []

  def make(host='127.0.0.1', *, is_secured=False, source=_source):
    server = dashboard.Server(host, 0, is_secured=is_secured)
    server.source = source
    server.start()
    servers.append(server)
    return server

  yield make
  for server in servers:
    server.stop()


@pytest.fixture(scope='module')
def page_port(make_server):
  """The port of a server of a job without TLS."""
  return make_server().server_port


def _flags(*words):
  values = flags.FlagValues()
  tfps.define_flags(values)
  values(['program', *words])
  return values


def _ask(port, path='/data', *, method='GET', host=None):
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=10)
  try:
    headers = {} if host is None else {'Host': host}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()
  finally:
    connection.close()


def _answers(port):
  try:
    return _ask(port)[0] == 200
  except (http.client.HTTPException, OSError):
    return False


def _begin(*, env=None, words=(), is_secured=False, source=_source):
  return dashboard.begin(
    source, is_secured=is_secured, env=env or {}, flag_values=_flags(*words)
  )


def test_the_page_names_files_that_are_served(page_port):
  status, headers, page = _ask(page_port, '/')
  assert status == 200
  assert headers['Content-Type'] == 'text/html; charset=utf-8'
  files = re.findall(r'(?:src|href)="([^":,]+)"', page)
  assert set(files) == {'uPlot.css', 'page.css', 'uPlot.js', 'page.js'}
  for name in files:
    status, headers, text = _ask(page_port, f'/{name}')
    assert (status, bool(text)) == (200, True)
    kind = 'javascript' if name.endswith('.js') else 'css'
    assert headers['Content-Type'] == f'text/{kind}; charset=utf-8'


def test_no_script_or_style_is_within_the_page(page_port):
  _, headers, page = _ask(page_port, '/')
  policy = headers['Content-Security-Policy']
  assert "default-src 'none'" in policy
  assert 'unsafe' not in policy
  assert not re.search(r'<style|<script(?! src)|\son\w+=|\sstyle=', page)


def test_facts_are_json_of_the_time_that_was_asked_for(page_port):
  status, headers, text = _ask(page_port, '/data?after=12.5')
  assert (status, headers['Content-Type']) == (200, 'application/json')
  assert headers['Cache-Control'] == 'no-store'
  assert json.loads(text) == {**_FACTS, 'after': 12.5}
  assert json.loads(_ask(page_port)[2])['after'] == 0


@pytest.mark.parametrize(
  ('path', 'status', 'complaint'),
  [
    pytest.param('/data?after=x', 400, "after is 'x'", id='no number'),
    pytest.param('/data?after=nan', 400, "after is 'nan'", id='not finite'),
    pytest.param('/other', 404, "no '/other'", id='no such file'),
    pytest.param('/../page.py', 404, 'There is no', id='another folder'),
    pytest.param('/uPlot.LICENSE', 404, 'There is no', id='not of the page'),
  ],
)
def test_wrong_requests_are_named(page_port, path, status, complaint):
  found, _, text = _ask(page_port, path)
  assert found == status
  assert complaint in text


@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE', 'OPTIONS'])
def test_it_can_only_be_read(page_port, method):
  assert _ask(page_port, '/', method=method)[0] == 501


@pytest.mark.parametrize(
  ('host', 'status'),
  [
    ('localhost', 200),
    ('LOCALHOST:8080', 200),  # as by an ssh tunnel from another port
    ('127.0.0.1:9500', 200),
    ('[::1]:9500', 200),
    ('[::1]', 200),
    ('example.com', 403),
    ('example.com:9500', 403),
    ('127.0.0.1.example.com', 403),
    ('10.0.0.1', 403),
    ('', 403),
  ],
)
def test_only_names_of_this_machine_are_answered(page_port, host, status):
  """A page of another site may have its name lead to this address."""
  found, _, text = _ask(page_port, host=host)
  assert found == status
  assert ('task' in text) == (status == 200)
  if status == 403:
    assert repr(host) in text


def test_any_name_is_answered_if_clients_have_proved_themselves(make_server):
  port = make_server(is_secured=True).server_port
  assert _ask(port, host='chief-0.tfps:9500')[0] == 200


def test_an_error_of_the_source_is_told_and_does_no_harm(make_server, caplog):
  def fail(after):
    if after:
      raise RuntimeError('no facts')
    return _FACTS

  port = make_server(source=fail).server_port
  status, _, text = _ask(port, '/data?after=1')
  assert status == 500
  assert 'no facts' not in text
  assert 'no facts' in caplog.text
  assert _ask(port)[0] == 200


def test_clients_that_send_nothing_leave_room_again(make_server):
  port = make_server().server_port
  silent = [
    socket.create_connection(('127.0.0.1', port))
    for _ in range(2 * dashboard._MAX_CONNECTIONS)
  ]
  # Those that find no room are closed.
  for each in silent[dashboard._MAX_CONNECTIONS :]:
    each.settimeout(10)
    assert each.recv(1) == b''
  for each in silent:
    each.close()
  waiting.until(lambda: _answers(port))


def test_who_sends_nothing_for_long_is_disconnected(make_server, set_timeouts):
  set_timeouts(page_client_secs=0.1)
  port = make_server().server_port
  with socket.create_connection(('127.0.0.1', port), timeout=30) as silent:
    assert silent.recv(1) == b''


def test_without_a_setting_nothing_listens():
  assert not _begin()
  assert dashboard._serve_once.cache_info().misses == 0


def test_the_flag_wins_over_the_environment(capfd):
  port, other = (portpicker.pick_unused_port() for _ in range(2))
  words = [f'--dashboard_port={port}']
  assert _begin(env={'TFPS_DASHBOARD_PORT': str(other)}, words=words)
  assert _ask(port)[0] == 200
  with pytest.raises(OSError):
    _ask(other)
  assert f'A page of this job is at http://127.0.0.1:{port}\n' in (
    capfd.readouterr().err
  )


def test_a_second_strategy_keeps_the_page_which_shows_it():
  port = portpicker.pick_unused_port()
  env = {'TFPS_DASHBOARD_PORT': str(port)}
  assert _begin(env=env)
  assert _begin(env=env, source=lambda after: {'task': 'worker:0'})
  assert json.loads(_ask(port)[2]) == {'task': 'worker:0'}


def test_a_busy_port_is_an_error_that_stops_nothing(caplog):
  with socket.create_server(('127.0.0.1', 0)) as busy:
    port = busy.getsockname()[1]
    assert not _begin(env={'TFPS_DASHBOARD_PORT': str(port)})
  (record,) = caplog.records
  assert record.levelname == 'ERROR'
  assert record.getMessage() == (
    f'TFPS_DASHBOARD_PORT: the page cannot be served at 127.0.0.1:{port}: '
    'Address already in use. Training goes on without; end what uses the '
    'port, or choose another one.'
  )


@pytest.mark.parametrize('value', ['x', '-1', '65536', 'a b:1', ':80'])
def test_a_port_that_is_none_is_named_with_its_source(value):
  with pytest.raises(ValueError, match='TFPS_DASHBOARD_PORT') as caught:
    _begin(env={'TFPS_DASHBOARD_PORT': value})
  assert repr(value) in str(caught.value)


@pytest.mark.parametrize('host', ['0.0.0.0', '10.0.0.1', 'h0', '[::]'])
def test_other_machines_see_it_only_by_tls(host):
  text = f'{host}:9500'
  with pytest.raises(ValueError, match='--dashboard_port') as caught:
    _begin(words=[f'--dashboard_port={text}'])
  for part in (repr(text), 'ssh -L 9500:127.0.0.1:9500', 'docs/security.md'):
    assert part in str(caught.value)
  assert dashboard.parse(text, 'here', is_secured=True) == (host, 9500)


@pytest.mark.parametrize('host', ['localhost', '127.0.0.2', '[::1]'])
def test_this_machine_may_be_named(host):
  parsed = dashboard.parse(f'{host}:9500', 'here', is_secured=False)
  assert parsed == (host, 9500)
