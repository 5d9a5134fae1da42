"""Losses of trainings on the way, against time and against steps."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from benchmarks import picture


@dataclasses.dataclass(frozen=True)
class Curve:
  """One training.

  Attributes:
    name: of the training.
    secs: when its loss was looked at.
    steps: how many there had been by then.
    losses: what was seen.
  """

  name: str
  secs: Sequence[float]
  steps: Sequence[int]
  losses: Sequence[float]

  def secs_to(self, loss: float) -> float | None:
    """The seconds until a loss was seen; None if it never was."""
    return self._first_to(loss, self.secs)

  def steps_to(self, loss: float) -> float | None:
    """The steps until then."""
    return self._first_to(loss, self.steps)

  def _first_to(self, loss: float, places: Sequence[float]) -> float | None:
    return next(
      (x for x, seen in zip(places, self.losses, strict=True) if seen <= loss),
      None,
    )


@dataclasses.dataclass(frozen=True)
class Curves:
  """Trainings to be shown in one picture.

  Attributes:
    name: for files.
    title: what they show.
    step: what a step is.
    goal: the loss that was to be reached.
    curves: one for each training.
  """

  name: str
  title: str
  step: str
  goal: float
  curves: Sequence[Curve]

  @classmethod
  def from_json(cls, entry: dict[str, Any]) -> 'Curves':
    """From what `dataclasses.asdict` has made of some."""
    curves = [Curve(**curve) for curve in entry['curves']]
    return cls(**{**entry, 'curves': curves})


def as_text(curves: Curves) -> str:
  """A line for each, for a terminal."""
  return '\n'.join(
    ['', curves.title]
    + [
      f'{each.name}: {each.losses[-1]:.4f} after {each.secs[-1]:.1f} s and '
      f'{each.steps[-1]} {curves.step}'
      for each in curves.curves
    ]
  )


def draw(curves: Curves, path: pathlib.Path) -> None:
  """Writes a PNG: the losses against seconds, and against steps.

  Raises:
    RuntimeError: matplotlib is not installed.
  """
  figure = picture.matplotlib().Figure((10, 4.5), layout='constrained')
  by_secs, by_steps = figure.subplots(1, 2, sharey=True)
  for each in curves.curves:
    by_secs.plot(each.secs, each.losses, label=each.name)
    by_steps.plot(each.steps, each.losses, label=each.name)
  for axes, label in ((by_secs, 'seconds'), (by_steps, curves.step)):
    axes.axhline(curves.goal, color='black', linewidth=0.8, linestyle=':')
    axes.set(xlabel=label)
    axes.spines[['top', 'right']].set_visible(False)
  by_secs.set(ylabel='held-out loss')
  by_steps.legend(frameon=False)
  figure.suptitle(curves.title)
  figure.savefig(path, dpi=120)
