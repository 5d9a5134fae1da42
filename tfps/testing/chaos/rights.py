"""Checks a machine for root, commands, and the permission of its kernel."""

from collections.abc import Sequence
import os
import shutil
import subprocess


def problem(
  *,
  takes_root: str,
  commands: Sequence[str],
  packages: str,
  trial: Sequence[str],
  refuses: str,
) -> str:
  """Returns why a tool cannot be used on this machine; empty if it can.

  Args:
    takes_root: the reason if this process is not root's.
    commands: commands that are required.
    packages: packages to install for them.
    trial: a command that fails if the kernel does not permit the tool's use.
    refuses: the beginning of the reason if it fails.
  """
  if os.geteuid() != 0:
    return takes_root
  missing = [command for command in commands if not shutil.which(command)]
  if missing:
    return f'{", ".join(missing)} is missing. Install {packages}.'
  done = subprocess.run(trial, capture_output=True, text=True)
  return f'{refuses}: {done.stderr.strip()}' if done.returncode else ''
