"""Training in which each step has a gradient of 1."""

import threading

import tensorflow as tf

from tests.support import slopes
from tests.support import waiting


class EnoughError(Exception):
  """Ends training."""


class Ones(slopes.Slopes):
  """A number whose gradient is 1 in each step."""

  def __init__(self, strategy):
    super().__init__(strategy)
    self.step_fn = self.step
    self.step_at = 0
    self.is_to_end = threading.Event()

  def note(self, progress):
    self.step_at = progress.step
    if self.is_to_end.is_set():
      raise EnoughError

  def train(self, coordinator):
    return coordinator.train(
      self.step_fn,
      lambda context: tf.data.Dataset.from_tensors(
        tf.constant(1.0, tf.float64)
      ).repeat(),
      steps=1_000_000,
      steps_per_execution=2,
      hooks=[self.note],
    )


def wait_for_steps(ones, number=20):
  goal = ones.step_at + number
  waiting.until(lambda: ones.step_at > goal, timeout_secs=60)
