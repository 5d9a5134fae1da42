"""What tests of enclosures need of a machine, and of each other."""

import contextlib
import functools
import os
import subprocess
import sys
import tempfile

import pytest

from tfps.cluster import spec as spec_lib
from tfps.security import certificates
from tfps.security import config
from tfps.security import doors
from tfps.security import namespaces
from tfps.security import preload
from tfps.security import proxy

PS = spec_lib.Task('ps', 0)
WORKER = spec_lib.Task('worker', 0)
OBSERVER = spec_lib.Task('evaluator', 0)

_ENTER = (
  'from tfps.security import namespaces as n\n'
  "n.enter_new()\nn.set_up_loopback(['10.0.0.1'])\n"
)


# Has a network as long as its input is open.
_NETWORK = """
import sys
from tfps.security import namespaces
namespaces.enter_new()
namespaces.set_up_loopback(sys.argv[1:])
print('ready', flush=True)
sys.stdin.read()
"""


@functools.cache
def _obstacle():
  """Why this machine can enclose nothing; '' if it can."""
  try:
    proxy.check_installed()
  except ValueError as error:
    return str(error)
  done = subprocess.run(
    [sys.executable, '-c', _ENTER], capture_output=True, text=True
  )
  if done.returncode:
    return f'namespaces are not allowed: {done.stderr.splitlines()[-1]}'
  return ''


def needed():
  """The mark of tests that enclose something."""
  return pytest.mark.skipif(bool(_obstacle()), reason=_obstacle())


@functools.cache
def _obstacle_to_preloading():
  """Why this machine can preload no doors; '' if it can."""
  try:
    with tempfile.TemporaryDirectory() as folder:
      preload.Preloaded(doors.Plan((), {}), folder)
  except ValueError as error:
    return str(error)
  return ''


def preloads():
  """The mark of tests that preload doors."""
  reason = _obstacle_to_preloading()
  return pytest.mark.skipif(bool(reason), reason=reason)


@contextlib.contextmanager
def network(*hosts):
  """The words of a command that runs another one in a network of its own.

  Args:
    *hosts: addresses of this machine there, besides loopback ones.
  """
  with subprocess.Popen(
    [sys.executable, '-c', _NETWORK, *hosts],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as process:
    assert process.stdout.readline() == b'ready\n'
    yield namespaces.command_within(process.pid, [])


def credentials(folder, task):
  """A task's credentials in a folder of certificates."""
  return config.Security.of_task(folder, task, 'the test')


def make(folder, *tasks, **options):
  """Makes certificates, by default of ps:0, worker:0 and evaluator:0."""
  certificates.make(folder, tasks or (PS, WORKER, OBSERVER), **options)
  return folder


def start(cluster, task, folder, *command, within=(), options=(), **env):
  """Starts a command enclosed as a task, with certificates of a folder.

  Args:
    cluster: the cluster.
    task: the task.
    folder: the folder.
    *command: the command.
    within: the words of a command that runs another one, of the enclosure.
    options: of `tfps enclose`.
    **env: variables.
  """
  own = {
    **os.environ,
    **credentials(folder, task).env(),
    'TF_CONFIG': cluster.with_task(task).tf_config(),
    'PYTHONUNBUFFERED': '1',
    **env,
  }
  return subprocess.Popen(
    [
      *within,
      *(sys.executable, '-m', 'tfps.security.enclose_command'),
      *(*options, '--'),
      *map(str, command),
    ],
    env=own,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
