"""HTTP endpoint from which Prometheus scrapes this process' metrics.

Its port is that of the flag `--metrics_port`, else of the environment variable
TFPS_METRICS_PORT; without either, there is none. A host before the port, as in
`0.0.0.0:9400`, lets other machines connect; by default only this one can.
"""

from collections.abc import Mapping
import functools
import os
import threading
from typing import Any

from absl import flags
from absl import logging

from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.cluster import validation
from tfps.monitor import prometheus
from tfps.monitor import registry as registry_lib

VARIABLE = 'TFPS_METRICS_PORT'

_LOOPBACK = '127.0.0.1'


class Endpoint:
  """A running endpoint.

  Attributes:
    address: its 'host:port'.
  """

  def __init__(self, server: Any, thread: threading.Thread, host: str) -> None:
    self.address = f'{host}:{server.server_port}'
    self._server = server
    self._thread = thread

  def stop(self) -> None:
    """Ends the endpoint and frees its port."""
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()


def serve(port: int | str, *, where: str = 'serve') -> Endpoint | None:
  """Starts an endpoint for this process' metrics.

  Args:
    port: the port, or 'host:port' to listen at another address than the
      loopback one; port 0 takes a free one.
    where: the source of the port, for errors.

  Returns:
    The endpoint; None, after a logged error, if the port is in use. Training
    goes on without it.

  Raises:
    ImportError: `prometheus_client` is not installed.
    ValueError: the port is none.
  """
  host, number = parse(str(port), where)
  registry = registry_lib.of_process()
  prometheus_client = prometheus.client()
  own = prometheus_client.CollectorRegistry(auto_describe=False)
  own.register(prometheus.Collector(registry))
  try:
    server, thread = prometheus_client.start_http_server(
      number, addr=host.strip('[]'), registry=own
    )
  except OSError as error:
    log_busy('metrics', where, host, number, error)
    return None
  registry.is_read = True
  endpoint = Endpoint(server, thread, host)
  logging.info(
    '%s: metrics at http://%s/metrics', registry.task, endpoint.address
  )
  return endpoint


def begin(
  task: spec_lib.Task,
  *,
  is_chief: bool,
  env: Mapping[str, str] = os.environ,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
  """Notes this process' task, and starts the endpoint that was asked for.

  Args:
    task: the task.
    is_chief: whether this process reports what is the same for all.
    env: the environment.
    flag_values: the flags; skipped unless they are defined and parsed.

  Raises:
    ImportError: an endpoint is wanted, and `prometheus_client` not installed.
    ValueError: the port is none.
  """
  registry = registry_lib.of_process()
  registry.task, registry.is_chief = task, is_chief
  where, port = setting(resolver.METRICS_FLAG, VARIABLE, env, flag_values)
  if port:
    _serve_once(port, where)


def parse(text: str, where: str) -> tuple[str, int]:
  """Returns the host and port of a setting.

  Args:
    text: 'port' or 'host:port'.
    where: the source of the setting, for the error.

  Raises:
    ValueError: it is neither.
  """
  given = text if ':' in text else f'{_LOOPBACK}:{text}'
  try:
    validation.address(given, where)
  except ValueError as error:
    raise ValueError(
      f'{where}: {text!r} is neither a port, such as 9400, nor host:port, such '
      'as 0.0.0.0:9400.'
    ) from error
  host, _, port = given.rpartition(':')
  return host, int(port)


def log_busy(
  what: str, where: str, host: str, port: int, error: OSError
) -> None:
  """Logs that something is not served, without which training goes on.

  Args:
    what: such as 'metrics'.
    where: the source of the setting.
    host: where it was to listen.
    port: likewise.
    error: why it cannot.
  """
  logging.error(
    '%s: %s cannot be served at %s:%d: %s. Training goes on without; '
    'end what uses the port, or choose another one.',
    where,
    what,
    host,
    port,
    error.strerror,
  )


def setting(
  flag: str,
  variable: str,
  env: Mapping[str, str],
  flag_values: flags.FlagValues,
) -> tuple[str, str]:
  """Returns the name and value of the setting that wins; '' for none.

  Args:
    flag: the name of a flag, which wins.
    variable: the name of a variable of the environment.
    env: the environment.
    flag_values: the flags; skipped unless they are defined and parsed.
  """
  if flag in flag_values and flag_values.is_parsed():
    value = flag_values[flag].value
    if value not in (None, ''):
      return f'--{flag}', str(value)
  return variable, env.get(variable, '').strip()


# A process may be a client of one cluster after another.
@functools.cache
def _serve_once(port: str, where: str) -> Endpoint | None:
  return serve(port, where=where)
