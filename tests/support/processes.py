"""Helpers for tests that watch operating-system processes end."""

import psutil

from tests.support import waiting


def wait_for_end(processes):
  """Returns once all `psutil` processes have ended."""
  waiting.until(lambda: all(_has_ended(process) for process in processes))


def _has_ended(process):
  """Whether it is gone, or would be if its parent cared."""
  try:
    return process.status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True
