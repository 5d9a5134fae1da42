"""What is to be learnt on slow links, and how far."""

import dataclasses

import keras

from tfps import updates


@dataclasses.dataclass(frozen=True)
class Goal:
  """How well to learn one of the examples' problems.

  Attributes:
    title: for people.
    metric: by the name that the compiled model has for it.
    target_loss: to be reached.
    steps_per_look: steps between two looks.
    num_looks: how many, after the one at which time begins.
    inner_learning_rate: of local steps.
    outer_learning_rate: of Adam, for what they have changed.
  """

  title: str
  metric: str
  target_loss: float
  steps_per_look: int
  num_looks: int
  inner_learning_rate: float
  outer_learning_rate: float

  @property
  def num_steps(self) -> int:
    """Of all workers together, those before time begins included."""
    return self.steps_per_look * (1 + self.num_looks)

  @property
  def local_steps(self) -> updates.LocalSteps:
    outer = keras.optimizers.Adam(self.outer_learning_rate)
    return updates.LocalSteps(8, self.inner_learning_rate, outer=outer)


# The rates are the best of a few that were tried.
_GOALS = {
  'flights': Goal(
    title='Late flights, wide & deep',
    metric='auc',
    target_loss=0.445,
    steps_per_look=64,
    num_looks=12,
    inner_learning_rate=0.3,
    outer_learning_rate=0.01,
  ),
  'images': Goal(
    title='Garments, convolutional network',
    metric='accuracy',
    target_loss=0.6,
    steps_per_look=64,
    num_looks=16,
    inner_learning_rate=0.3,
    outer_learning_rate=0.01,
  ),
}


def of(name: str, *, quick: bool) -> Goal:
  """The goal of a problem; a quick one is there to see that it runs."""
  goal = _GOALS[name]
  if not quick:
    return goal
  return dataclasses.replace(
    goal, target_loss=2.2, steps_per_look=16, num_looks=1
  )
