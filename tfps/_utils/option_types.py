"""Types of command-line options, for `argparse`."""

import argparse
import math
import re


def natural(text: str) -> int:
  """Returns an integer from 0 upwards.

  Args:
    text: the option's value.

  Raises:
    argparse.ArgumentTypeError: it is none.
  """
  if not re.fullmatch('[0-9]+', text):
    raise argparse.ArgumentTypeError(f'{text!r} is not 0, 1, 2, ...')
  return int(text)


def positive(text: str) -> int:
  """Returns an integer from 1 upwards; see `natural`."""
  if not re.fullmatch('0*[1-9][0-9]*', text):
    raise argparse.ArgumentTypeError(f'{text!r} is not 1, 2, 3, ...')
  return int(text)


def seconds(text: str) -> float:
  """Returns a number of seconds, which may be 0; see `natural`."""
  try:
    secs = float(text)
  except ValueError:
    secs = math.nan
  if not 0 <= secs < math.inf:
    raise argparse.ArgumentTypeError(f'{text!r} is no number of seconds')
  return secs


def positive_seconds(text: str) -> float:
  """Returns a number of seconds above 0; see `natural`."""
  secs = seconds(text)
  if not secs:
    raise argparse.ArgumentTypeError(
      f'{text!r} is no number of seconds above 0'
    )
  return secs
