"""Hides TensorFlow's own messages, which nobody has asked for.

TensorFlow writes some two hundred lines to the screen of a small job: what it
is built with, whom it connects to, and what it cancels when data or training
ends. It reads how much to write from the environment once, when it is imported,
and writes lines of its Python code twice under `absl.app.run`. Errors of its
C++ code reach Python as exceptions, too.

This module does not import TensorFlow.
"""

from collections.abc import Mapping
import contextlib
import ctypes
import logging
import os
import pathlib
import re
import sys

from absl import flags
from absl import logging as absl_logging

# As TensorFlow reads it: the least severity, 0 for INFO to 3 for FATAL.
LEVEL = 'TF_CPP_MIN_LOG_LEVEL'

_FATAL = 3
# INFO of C++ code, and the notice that comes before the first message.
_WHILE_LOADING = re.compile(
  rb'I0000 00:00:\d+\.\d+ +\d+ \w+\.cc:\d+\] '
  rb'|WARNING: All log messages before absl::InitializeLog\(\) is called'
)
# Where TensorFlow's Python code is that logs by Abseil.
_FOLDER = os.path.join('tensorflow', 'python', '')
# `absl::SetMinLogLevel`, in TensorFlow's version of Abseil.
_SET_LEVEL = '_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE'


def quiet() -> None:
  """Hides messages of TensorFlow's C++ code, and those below WARNING of Python.

  The environment variable TF_CPP_MIN_LOG_LEVEL, the flag --verbosity, or a
  level of the logger 'tensorflow' brings them back.
  """
  if LEVEL not in os.environ:
    os.environ[LEVEL] = str(_FATAL)
    if 'tensorflow' in sys.modules:  # which has read the variable already
      _set_level(_FATAL)
  for name in ('tensorflow', 'absl'):
    logging.getLogger(name).addFilter(_is_wanted)  # once


def is_shown(line: bytes, env: Mapping[str, str]) -> bool:
  """Returns whether a line of a program's output is for its user.

  What TensorFlow's libraries write while they are loaded heeds no variable.

  Args:
    line: of the output.
    env: the environment of the program.
  """
  is_hidden = env.get(LEVEL, '0') != '0' and _WHILE_LOADING.match(line)
  return not is_hidden


def _is_wanted(record: logging.LogRecord) -> bool:
  if record.name == 'absl' and _FOLDER not in record.pathname:
    return True
  logger = logging.getLogger('tensorflow')
  if any(
    isinstance(h, absl_logging.ABSLHandler) for h in logging.root.handlers
  ):
    # TensorFlow's own handler would write each line once more.
    logger.handlers[:] = [
      h for h in logger.handlers if type(h) is not logging.StreamHandler
    ]
  if record.levelno >= logging.WARNING or logger.level != logging.NOTSET:
    return True
  # `app.run` raises the flag to INFO if it was not given.
  flag = flags.FLAGS['verbosity']
  return bool(flag.present or (flag.value or 0) > 0)


def _set_level(level: int) -> None:
  """Sets the least severity of messages of C++ code."""
  folder = pathlib.Path(sys.modules['tensorflow'].sysconfig.get_lib())
  with contextlib.suppress(OSError, AttributeError):
    for path in folder.glob('libtensorflow_framework.*'):
      getattr(ctypes.CDLL(str(path)), _SET_LEVEL)(level)
