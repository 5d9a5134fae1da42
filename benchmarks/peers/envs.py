"""Environments of peers, made when they are first needed, and kept."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib
import subprocess
import sys

_INSTALL_SECS = 1200.0
_IMPORT_SECS = 120.0
_STAMP = 'installed.json'


class MissingError(Exception):
  """An environment cannot be had."""


@dataclasses.dataclass(frozen=True)
class Environment:
  """What a peer needs.

  Attributes:
    name: of its folder.
    module: which can be imported if all is there.
    installs: the words of one `pip install` after another; without any, it is
      this interpreter's own environment.
  """

  name: str
  module: str
  installs: Sequence[Sequence[str]] = ()

  def python(self, folder: pathlib.Path, *, install: bool) -> str:
    """The interpreter of the environment.

    Args:
      folder: has all environments.
      install: whether to make it if it is not there.

    Raises:
      MissingError: it is not there, or cannot be installed or imported.
    """
    python = sys.executable
    if self.installs:
      home = (folder / self.name).resolve()
      python = str(home / 'bin' / 'python')
      if not self._is_installed(home):
        if not install:
          raise MissingError(f'{self.name} is not installed in {home}')
        self._install(home)
    _run([python, '-c', f'import {self.module}'], _IMPORT_SECS)
    return python

  def _is_installed(self, home: pathlib.Path) -> bool:
    stamp = home / _STAMP
    wanted = [list(words) for words in self.installs]
    return stamp.exists() and json.loads(stamp.read_text()) == wanted

  def _install(self, home: pathlib.Path) -> None:
    python = str(home / 'bin' / 'python')
    _run([sys.executable, '-m', 'venv', '--clear', str(home)], _INSTALL_SECS)
    for words in self.installs:
      _run([python, '-m', 'pip', 'install', '-q', *words], _INSTALL_SECS)
    wanted = [list(words) for words in self.installs]
    (home / _STAMP).write_text(json.dumps(wanted))


def _run(command: Sequence[str], timeout_secs: float) -> None:
  """Runs a command.

  Raises:
    MissingError: it fails, with the last line that it writes.
  """
  try:
    done = subprocess.run(
      command,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=timeout_secs,
    )
  except subprocess.TimeoutExpired:
    raise MissingError(f'not done after {timeout_secs:g} seconds') from None
  if done.returncode:
    lines = done.stdout.strip().splitlines() or ['it says nothing']
    raise MissingError(lines[-1].strip())
