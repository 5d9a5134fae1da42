"""Certificates of a job: its own CA, and one certificate for each task.

`make(folder, cluster.tasks())` leaves `ca.pem`, `ca.key`, and for each task
`ps-0.pem` and `ps-0.key`. A task's names are the DNS name `ps-0.tfps`, which
others verify when they call it, and the SPIFFE ID `spiffe://tfps/JOB/ps/0`. A
folder that has a CA keeps it: making certificates again renews them.
"""

from collections.abc import Iterable
import datetime
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING

from tfps._utils import private_files
from tfps.cluster import spec as spec_lib

if TYPE_CHECKING:
  from tfps.security import authority as authority_lib

CA = 'ca.pem'
DEFAULT_HOURS = 168
MAX_HOURS = 24 * 3650  # of a CA, too

_CA_KEY = 'ca.key'


def dns_name(task: spec_lib.Task) -> str:
  """Returns the name by which others verify a task."""
  return f'{task.job}-{task.index}.tfps'


def paths(
  folder: pathlib.Path, task: spec_lib.Task
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the files of a task's certificate and key.

  Args:
    folder: as for `make`.
    task: the task.
  """
  stem = f'{task.job}-{task.index}'
  return folder / f'{stem}.pem', folder / f'{stem}.key'


def make(
  folder: pathlib.Path,
  tasks: Iterable[spec_lib.Task],
  *,
  valid_hours: float = DEFAULT_HOURS,
  keeps_ca_key: bool = True,
) -> None:
  """Writes a certificate for each task, and a CA if the folder has none.

  Keys are for their owner only, and so is the folder.

  Args:
    folder: made if there is none.
    tasks: the tasks.
    valid_hours: how long the certificates are valid.
    keeps_ca_key: whether the key of a new CA is written, so that further
      certificates can be made.

  Raises:
    ImportError: the package `cryptography` is not installed.
    ValueError: others may use the folder, its CA cannot be used, or the time is
      too long.
    OSError: a file cannot be written or read.
  """
  if valid_hours > MAX_HOURS:
    raise ValueError(
      f'valid_hours is {valid_hours:g}, more than {MAX_HOURS}, after which the '
      'CA itself expires. Make it less.'
    )
  valid = datetime.timedelta(hours=valid_hours)
  private_files.make_folder(folder)
  mode = folder.stat().st_mode & 0o777
  if mode & 0o077:
    raise ValueError(
      f'{folder} is to hold keys, and others may use it: its mode is '
      f'{mode:03o}. Run chmod 700 {folder}, or give a new folder.'
    )
  authority = _authority(folder, keeps_key=keeps_ca_key)
  for task in tasks:
    certificate, key = paths(folder, task)
    certificate_pem, key_pem = authority.issue(
      task.job, task.index, dns_name=dns_name(task), valid=valid
    )
    _write(key, key_pem)
    _write(certificate, certificate_pem)


def _authority(
  folder: pathlib.Path, *, keeps_key: bool
) -> 'authority_lib.Authority':
  """Returns the CA of a folder, which is made if there is none."""
  try:
    from tfps.security import authority as authority_lib
  except ImportError as error:
    raise ImportError(
      f'Certificates need cryptography ({error}): pip install "tfps[secure]".'
    ) from error

  certificate, key = folder / CA, folder / _CA_KEY
  if not certificate.exists():
    authority = authority_lib.Authority.new(
      valid=datetime.timedelta(hours=MAX_HOURS)
    )
    if keeps_key:
      _write(key, authority.key_pem())
    _write(certificate, authority.pem())
    return authority
  if not key.exists():
    raise ValueError(
      f'{certificate} is a CA whose key {key} is missing, so that it can sign '
      'nothing. Give a new folder.'
    )
  try:
    return authority_lib.Authority.load(
      certificate.read_bytes(), key.read_bytes()
    )
  except (ValueError, TypeError) as error:
    raise ValueError(
      f'{certificate} and {key} are no CA that `tfps certs` has made: {error}. '
      'Give a new folder.'
    ) from error


def _write(path: pathlib.Path, data: bytes) -> None:
  """Writes a file for its owner only, so that readers see all or nothing."""
  number, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}-')
  with open(number, 'wb') as file:
    file.write(data)
  os.replace(name, path)
