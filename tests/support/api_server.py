"""A stand-in for Kubernetes' API server, as far as `kubectl apply` needs one.

It keeps what is created, and knows the kinds of `KINDS`. It checks
nothing: schemas are checked elsewhere.
"""

import contextlib
import http.server
import json
import pathlib
import threading
from typing import Any
import urllib.parse

# Group, version, kind and plural.
KINDS = (
  ('', 'v1', 'ConfigMap', 'configmaps'),
  ('', 'v1', 'Secret', 'secrets'),
  ('', 'v1', 'Service', 'services'),
  ('apps', 'v1', 'StatefulSet', 'statefulsets'),
  ('batch', 'v1', 'Job', 'jobs'),
  ('jobset.x-k8s.io', 'v1alpha2', 'JobSet', 'jobsets'),
  ('kubeflow.org', 'v1', 'TFJob', 'tfjobs'),
  ('networking.k8s.io', 'v1', 'NetworkPolicy', 'networkpolicies'),
  ('policy', 'v1', 'PodDisruptionBudget', 'poddisruptionbudgets'),
)


class ApiServer:
  """A running server.

  Args:
    without: a kind that it does not have.

  Attributes:
    created: all objects that were created, in order.
    queries: the query of each creation.
  """

  def __init__(self, *, without: str = '') -> None:
    self.created: list[dict[str, Any]] = []
    self.queries: list[dict[str, list[str]]] = []
    self._answers = _discovery(without)
    owner = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *args):
        del args

      def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        answer = owner._answers.get(path.rstrip('/'))
        self._send(*((200, answer) if answer else (404, _NOT_FOUND)))

      def do_POST(self):
        size = int(self.headers['Content-Length'])
        made = json.loads(self.rfile.read(size))
        query = urllib.parse.urlparse(self.path).query
        owner.queries.append(urllib.parse.parse_qs(query))
        owner.created.append(made)
        self._send(201, made)

      def _send(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True

  @contextlib.contextmanager
  def running(self):
    """Serves until the context is left."""
    thread = threading.Thread(
      target=self._server.serve_forever, name='api-server', daemon=True
    )
    thread.start()
    try:
      yield self
    finally:
      self._server.shutdown()
      self._server.server_close()
      thread.join(10)

  def config(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes kubectl's configuration for this server."""
    return write_config(folder, self._server.server_address[1])


def write_config(folder: pathlib.Path, port: int) -> pathlib.Path:
  """Writes kubectl's configuration for a server on this machine."""
  path = folder / 'kubeconfig'
  named = {
    'clusters': {'cluster': {'server': f'http://127.0.0.1:{port}'}},
    'users': {'user': {}},
    'contexts': {'context': {'cluster': 'here', 'user': 'here'}},
  }
  config = {
    'apiVersion': 'v1',
    'kind': 'Config',
    'current-context': 'here',
    **{kind: [{'name': 'here', **values}] for kind, values in named.items()},
  }
  path.write_text(json.dumps(config))
  return path


_NOT_FOUND = {
  'kind': 'Status',
  'apiVersion': 'v1',
  'status': 'Failure',
  'reason': 'NotFound',
  'code': 404,
}


def _discovery(without) -> dict[str, Any]:
  """The answers about which kinds there are, by path."""
  answers: dict[str, Any] = {
    '/api': {'kind': 'APIVersions', 'versions': ['v1']},
    '/apis': {'kind': 'APIGroupList', 'groups': []},
    '/openapi/v3': {'paths': {}},
  }
  for group, version, kind, plural in KINDS:
    path = f'apis/{group}/{version}' if group else 'api/v1'
    name = f'{group}/{version}' if group else version
    known = {'kind': 'APIResourceList', 'groupVersion': name, 'resources': []}
    answers.setdefault(f'/{path}', known)['resources'] += [
      {
        'name': plural,
        'kind': kind,
        'namespaced': True,
        'verbs': ['create', 'get', 'list', 'patch'],
      }
    ][: kind != without]
    if group:
      each = {'groupVersion': name, 'version': version}
      groups = {'name': group, 'versions': [each], 'preferredVersion': each}
      answers['/apis']['groups'].append(groups)
    where = {'serverRelativeURL': f'/openapi/v3/{path}'}
    answers['/openapi/v3']['paths'][path] = where
    pages = answers.setdefault(where['serverRelativeURL'], _page())
    pages['paths'][f'/{path}/namespaces/{{namespace}}/{plural}/{{name}}'] = {
      'patch': {
        # kubectl leaves the validation to a server that offers it.
        'parameters': [{'name': 'fieldValidation', 'in': 'query'}],
        'x-kubernetes-group-version-kind': {
          'group': group,
          'version': version,
          'kind': kind,
        },
        'responses': {},
      }
    }
  return answers


def _page() -> dict[str, Any]:
  info = {'title': 'Kubernetes', 'version': 'v1'}
  return {'openapi': '3.0.0', 'info': info, 'paths': {}}
