"""What the tests have to know of Keras' versions."""

import keras
import pytest

KERAS = tuple(int(part) for part in keras.__version__.split('.')[:2])


def needs_keras(major: int, minor: int) -> pytest.MarkDecorator:
  """Skips a test where Keras is older."""
  return pytest.mark.skipif(
    (major, minor) > KERAS, reason=f'needs Keras {major}.{minor}'
  )


def batch_told(first: int, last: int) -> int:
  """By which of the batches of an execution Keras calls it to callbacks."""
  return last if KERAS >= (3, 11) else first
