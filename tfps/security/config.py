"""A task's credentials for mutual TLS, checked before they are used."""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
import ssl

from tfps.cluster import spec as spec_lib
from tfps.security import certificates

VARIABLES = {'ca': 'TFPS_CA', 'cert': 'TFPS_CERT', 'key': 'TFPS_KEY'}


@dataclasses.dataclass(frozen=True)
class Security:
  """Files with which a task proves its name and verifies others.

  `Security(ca='certs/ca.pem', cert='certs/ps-0.pem', key='certs/ps-0.key')`

  Attributes:
    ca: certificates of the CAs whose certificates are accepted; usually one,
      that of the job.
    cert: the task's certificate, before those of intermediate CAs, if any.
    key: its private key, which others must not be able to read.
    source: where the three came from, for errors.
  """

  ca: str | os.PathLike[str]
  cert: str | os.PathLike[str]
  key: str | os.PathLike[str]
  source: str = dataclasses.field(default='Security(...)', compare=False)

  @classmethod
  def from_env(
    cls,
    env: Mapping[str, str],
    options: Mapping[str, str | None] | None = None,
  ) -> 'Security':
    """Reads the files' names from the environment.

    Args:
      env: the environment, for TFPS_CA, TFPS_CERT and TFPS_KEY.
      options: values of the options --ca, --cert and --key, which go first.

    Raises:
      ValueError: one of the three is missing.
    """
    given = options or {}
    values = {n: given.get(n) or env.get(v, '') for n, v in VARIABLES.items()}
    names = {
      name: f'--{name}' if given.get(name) else variable
      for name, variable in VARIABLES.items()
    }
    if missing := [n for n, value in values.items() if not value]:
      raise ValueError(
        f'{", ".join(VARIABLES[name] for name in missing)} is not set, nor '
        f'--{", --".join(missing)}. Give the files that `tfps certs` has made.'
      )
    return cls(**values, source=', '.join(names.values()))

  @classmethod
  def of_task(
    cls, folder: pathlib.Path, task: spec_lib.Task, source: str
  ) -> 'Security':
    """Returns a task's files in a folder that `certificates.make` has made.

    Args:
      folder: the folder.
      task: the task.
      source: what named the folder, for errors.
    """
    cert, key = certificates.paths(folder, task)
    return cls(folder / certificates.CA, cert, key, source=source)

  def env(self) -> dict[str, str]:
    """Returns the variables that `from_env` reads."""
    return {v: str(getattr(self, name)) for name, v in VARIABLES.items()}

  def check(self, task: spec_lib.Task | None) -> None:
    """Checks the files as peers will: by a handshake of both sides.

    Every task is verified as a client, and one with a server as that, with its
    name.

    Args:
      task: the task that is to be proved; None for one without a server.

    Raises:
      ValueError: a file cannot be read, others may read the key, or the
        certificate has expired, is of another CA, task or purpose, or not of
        the key.
    """
    for name in VARIABLES:
      _check_readable(f'{self.source}: {name}', getattr(self, name))
    self._check_private()
    try:
      server, client = self._contexts(task)
      server_name = certificates.dns_name(task) if task else None
      _shake_hands(server, client, server_name)
    except ssl.SSLCertVerificationError as error:
      raise ValueError(
        f'{self.source}: the certificate {self.cert} is refused: '
        f'{error.verify_message} (CA: {self.ca}). Make one for '
        f'{task or "this task"} by `tfps certs`.'
      ) from error

  def pem(self) -> bytes:
    """Returns certificate and key together, as proxies read them."""
    paths = (pathlib.Path(self.cert), pathlib.Path(self.key))
    return b'\n'.join(path.read_bytes() for path in paths)

  def _check_private(self) -> None:
    status = os.stat(self.key)
    # As of a mounted secret: root's, and readable by the group of the process.
    forbidden = 0o037 if status.st_uid == 0 else 0o077
    mode = status.st_mode & 0o777
    if mode & forbidden:
      raise ValueError(
        f'{self.source}: others may use the key {self.key}: its mode is '
        f'{mode:03o}. Run chmod 600 {self.key}.'
      )

  def _contexts(
    self, task: spec_lib.Task | None
  ) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    if task is None:
      client.check_hostname = False
      client.verify_mode = ssl.CERT_NONE
    try:
      for side in (server, client):
        side.load_verify_locations(self.ca)
    except ssl.SSLError as error:
      raise ValueError(
        f'{self.source}: {self.ca} holds no certificates of CAs '
        f'({error.reason}).'
      ) from error
    try:
      for side in (server, client):
        side.load_cert_chain(self.cert, self.key, password=lambda: b'')
    except ssl.SSLError as error:
      raise ValueError(
        f'{self.source}: {self.cert} and {self.key} are no certificate and its '
        f'unencrypted key ({error.reason or error}).'
      ) from error
    return server, client


def _check_readable(name: str, path: str | os.PathLike[str]) -> None:
  try:
    with open(path, 'rb') as file:
      file.read(1)
  except OSError as error:
    raise ValueError(
      f'{name} is {str(path)!r}, which cannot be read: {error.strerror}. Give '
      'a file that `tfps certs` has made.'
    ) from error


def _shake_hands(
  server: ssl.SSLContext, client: ssl.SSLContext, name: str | None
) -> None:
  """Completes a handshake in memory."""
  to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
  sides = [
    client.wrap_bio(to_client, to_server, server_hostname=name),
    server.wrap_bio(to_server, to_client, server_side=True),
  ]
  while sides:
    for side in tuple(sides):
      try:
        side.do_handshake()
        sides.remove(side)
      except ssl.SSLWantReadError:
        pass  # The other one has to write first.
