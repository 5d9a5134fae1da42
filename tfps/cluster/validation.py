"""Checks of single external values: address, index, job.

`where` begins every message: the source, then what the value belongs to. All
checks raise ValueError.
"""

import argparse
import ipaddress
import re
from typing import Any

JOBS = ('chief', 'ps', 'worker')

_HOST = re.compile(r'[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?')


def address(value: Any, where: str) -> str:
  """Returns the value if it is 'host:port'."""
  problem = _address_problem(value)
  if problem:
    raise ValueError(
      f'{where} has the address {value!r}: {problem}. '
      'Write host:port, such as 10.0.0.1:2222 or [::1]:2222.'
    )
  return value


def address_option(text: str) -> str:
  """Returns the value of a command's option `--address` if it is 'host:port'.

  Args:
    text: the value.

  Raises:
    argparse.ArgumentTypeError: it is none.
  """
  try:
    return address(text, '--address')
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def index(value: Any, where: str) -> int:
  """Returns a task index, which JSON may hold as a string."""
  if isinstance(value, str) and value.isascii() and value.isdigit():
    return int(value)
  if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
    return value
  raise ValueError(
    f'{where} has the task index {value!r}. Give a whole number from 0 upwards.'
  )


def job_in_cluster(value: Any, where: str) -> str:
  """Returns the name of a job that a cluster may list."""
  if value == 'evaluator':
    raise ValueError(
      f'{where} lists the job evaluator, and the cluster would wait for it '
      "forever. Remove it; only the evaluator's own task names it."
    )
  return _job(value, where, known=JOBS)


def job_of_task(value: Any, where: str) -> str:
  """Returns the name of a job that a task may belong to."""
  return _job(value, where, known=(*JOBS, 'evaluator'))


def _job(value: Any, where: str, *, known: tuple[str, ...]) -> str:
  if value == 'master':
    raise ValueError(
      f'{where} names the job master, the old name of chief. Write chief.'
    )
  if value not in known:
    raise ValueError(
      f'{where} names the job {value!r}. Use one of {", ".join(known)}.'
    )
  return value


def _address_problem(value: Any) -> str:
  if not isinstance(value, str):
    return 'it is not a string'
  if not value:
    return 'it is empty'
  if value.split() != [value]:
    return 'it contains a space'
  if '://' in value:
    return 'it has a scheme, which TensorFlow adds itself'
  host, colon, port = value.rpartition(':')
  if not colon:
    return 'its port is missing'
  return _port_problem(port) or _host_problem(host)


def _port_problem(port: str) -> str:
  number = int(port) if re.fullmatch('[0-9]{1,5}', port) else 65536
  return '' if number < 65536 else 'its port is not a number from 0 to 65535'


def _host_problem(host: str) -> str:
  if not host:
    return 'its host is empty'
  if host.startswith('[') and host.endswith(']'):
    return (
      '' if _is_ip(host[1:-1], version=6) else 'its host is no IPv6 address'
    )
  if ':' in host:
    return 'an IPv6 host needs brackets around it'
  if not _HOST.fullmatch(host):
    return 'its host is no host name'
  if re.fullmatch('[0-9.]+', host) and not _is_ip(host, version=4):
    return 'its host is no IPv4 address'
  return ''


def _is_ip(host: str, *, version: int) -> bool:
  try:
    return ipaddress.ip_address(host).version == version
  except ValueError:
    return False
