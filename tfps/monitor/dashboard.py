"""Web page of a running job, which its chief serves.

Its port is that of the flag `--dashboard_port`, else of the environment
variable TFPS_DASHBOARD_PORT; without either, there is none. It shows what a
source tells, each time that the page asks. It has no authentication: without
mutual TLS before it, it is served to this machine alone, and only by names of
this machine, so that no other site's page can read it by a name that it gives
this address.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import http
import http.server
import importlib.resources
import ipaddress
import json
import math
import os
import socket
import socketserver
import threading
from typing import Any
import urllib.parse

from absl import flags
from absl import logging

from tfps._utils import signals
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import resolver
from tfps.monitor import endpoint

VARIABLE = 'TFPS_DASHBOARD_PORT'

# Returns facts for JSON, with the history after a time, as of `time.time`.
Source = Callable[[float], Mapping[str, Any]]

_DATA = '/data'
_FILES = {
  '/': ('index.html', 'text/html; charset=utf-8'),
  '/page.js': ('page.js', 'text/javascript; charset=utf-8'),
  '/page.css': ('page.css', 'text/css; charset=utf-8'),
  '/uPlot.js': ('uPlot.iife.min.js', 'text/javascript; charset=utf-8'),
  '/uPlot.css': ('uPlot.min.css', 'text/css; charset=utf-8'),
}
_HEADERS = {
  'Cache-Control': 'no-store',
  'Content-Security-Policy': (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
    "script-src 'self'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
  ),
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
}
_LOCALHOST = 'localhost'
_MAX_CONNECTIONS = 16


def begin(
  source: Source,
  *,
  is_secured: bool,
  env: Mapping[str, str] = os.environ,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> bool:
  """Starts the page that was asked for, or has a running one show a new job.

  Args:
    source: tells what the page shows.
    is_secured: whether only clients that proved themselves reach this process.
    env: the environment.
    flag_values: the flags; skipped unless they are defined and parsed.

  Returns:
    Whether there is a page.

  Raises:
    ValueError: the port is none, or would let everybody see the page.
  """
  where, port = endpoint.setting(
    resolver.DASHBOARD_FLAG, VARIABLE, env, flag_values
  )
  server = _serve_once(port, where, is_secured) if port else None
  if server is None:
    return False
  server.source = source
  server.start()
  return True


def parse(text: str, where: str, *, is_secured: bool) -> tuple[str, int]:
  """Returns the host and port of a setting.

  Args:
    text: 'port' or 'host:port'.
    where: the source of the setting, for the error.
    is_secured: as for `begin`.

  Raises:
    ValueError: it is neither, or would let everybody see the page.
  """
  host, port = endpoint.parse(text, where)
  if not is_secured and not is_loopback(host):
    raise ValueError(
      f'{where}: {text!r} would show the page to other machines, and this job '
      f'has no TLS. Give the port alone, {port}, and reach it by '
      f'`ssh -L {port}:127.0.0.1:{port} HOST`, or secure the job, see '
      'docs/security.md.'
    )
  return host, port


class Server(http.server.ThreadingHTTPServer):
  """HTTP server of the page, each of whose connections has a thread.

  Args:
    host: where it listens.
    port: 0 takes a free one.
    is_secured: as for `begin`.

  Attributes:
    source: tells what the page shows; set before `start`.

  Raises:
    OSError: the port is in use.
  """

  daemon_threads = True
  request_queue_size = _MAX_CONNECTIONS
  source: Source

  def __init__(self, host: str, port: int, *, is_secured: bool) -> None:
    self._names = None if is_secured else {_LOCALHOST, host.lower()}
    self._thread = threading.Thread(
      target=self.serve_forever, name='tfps-dashboard', daemon=True
    )
    self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
    if host.startswith('['):
      self.address_family = socket.AF_INET6
    super().__init__((host.strip('[]'), port), _Handler)

  def start(self) -> None:
    """Serves in a thread; starting twice is harmless."""
    if not self._thread.is_alive():
      self._thread.start()

  def stop(self) -> None:
    """Ends a started server and frees its port."""
    self.shutdown()
    self.server_close()
    self._thread.join()

  def server_bind(self) -> None:
    # That of HTTPServer asks name servers for the name of the host.
    socketserver.TCPServer.server_bind(self)
    host, port = self.server_address[:2]
    self.server_name, self.server_port = str(host), int(port)

  def knows(self, host: str) -> bool:
    """Returns whether a request may name this server so.

    Args:
      host: the request's header.
    """
    name = host.lower().rpartition(':')[0] if _has_port(host) else host.lower()
    return self._names is None or name in self._names or is_loopback(name)

  def process_request(self, request: Any, client_address: Any) -> None:
    if self._places.acquire(blocking=False):
      threads.begin(
        'tfps-dashboard-request',
        lambda: self.process_request_thread(request, client_address),
      )
    else:
      self.shutdown_request(request)

  def process_request_thread(self, request: Any, client_address: Any) -> None:
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._places.release()

  def handle_error(self, request: Any, client_address: Any) -> None:
    logging.vlog(1, 'A client of the page has gone.', exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers a request of a browser."""

  server: Server
  server_version = 'tfps'
  sys_version = ''

  def setup(self) -> None:
    super().setup()
    self.connection.settimeout(timeouts.current().page_client_secs)

  def do_GET(self) -> None:
    host = self.headers.get('Host', '')
    url = urllib.parse.urlsplit(self.path)
    if not self.server.knows(host):
      self._refuse(
        http.HTTPStatus.FORBIDDEN,
        f'The host {host!r} is not this one. Use localhost or 127.0.0.1.',
      )
    elif url.path == _DATA:
      self._send_data(urllib.parse.parse_qs(url.query))
    elif url.path in _FILES:
      name, kind = _FILES[url.path]
      self._send(http.HTTPStatus.OK, kind, _read(name))
    else:
      self._refuse(http.HTTPStatus.NOT_FOUND, f'There is no {url.path!r}.')

  def _send_data(self, query: Mapping[str, list[str]]) -> None:
    (text, *_) = query.get('after', ['0'])
    after = _number(text)
    if after is None:
      self._refuse(
        http.HTTPStatus.BAD_REQUEST,
        f'after is {text!r}. Give a Unix time, such as 0.',
      )
      return
    try:
      body = json.dumps(self.server.source(after), allow_nan=False)
    except Exception:  # the page goes on, as training does
      logging.exception('The page could not be told about the job.')
      self._refuse(
        http.HTTPStatus.INTERNAL_SERVER_ERROR,
        'The chief could not tell about the job; its log says why.',
      )
      return
    self._send(http.HTTPStatus.OK, 'application/json', body.encode())

  def _refuse(self, status: http.HTTPStatus, why: str) -> None:
    self._send(status, 'text/plain; charset=utf-8', f'{why}\n'.encode())

  def _send(self, status: http.HTTPStatus, kind: str, body: bytes) -> None:
    self.send_response(status)
    for name, value in _HEADERS.items():
      self.send_header(name, value)
    self.send_header('Content-Type', kind)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, format: str, *args: object) -> None:
    logging.vlog(2, format, *args)


# A process may make one strategy after another.
@functools.cache
def _serve_once(port: str, where: str, is_secured: bool) -> Server | None:
  """Returns the server; None, after a logged error, if the port is in use."""
  host, number = parse(port, where, is_secured=is_secured)
  try:
    server = Server(host, number, is_secured=is_secured)
  except OSError as error:
    endpoint.log_busy('the page', where, host, number, error)
    return None
  scheme = 'https' if is_secured else 'http'  # by the proxy before it
  signals.tell_user(
    f'A page of this job is at {scheme}://{host}:{server.server_port}'
  )
  return server


@functools.cache
def _read(name: str) -> bytes:
  """Returns a file of the page."""
  return (
    importlib.resources.files('tfps.monitor') / 'page' / name
  ).read_bytes()


def is_loopback(host: str) -> bool:
  """Returns whether only this machine can connect to a host."""
  try:
    return ipaddress.ip_address(host.strip('[]')).is_loopback
  except ValueError:
    return host.lower() == _LOCALHOST


def _has_port(host: str) -> bool:
  return ':' in host.rpartition(']')[2]


def _number(text: str) -> float | None:
  """Returns a finite number, or None if the text is none."""
  try:
    number = float(text)
  except ValueError:
    return None
  return number if math.isfinite(number) else None
