"""What tests need of a machine: root, commands, and a kernel that allows it."""

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
  """Why something cannot be done on this machine; empty if it can.

  Args:
    takes_root: what to say to others than root.
    commands: that are needed.
    packages: what to install for them.
    trial: a command that fails where the machine does not allow it.
    refuses: what to say then.
  """
  if os.geteuid() != 0:
    return takes_root
  missing = [command for command in commands if not shutil.which(command)]
  if missing:
    return f'{", ".join(missing)} is missing. Install {packages}.'
  done = subprocess.run(trial, capture_output=True, text=True)
  return f'{refuses}: {done.stderr.strip()}' if done.returncode else ''
