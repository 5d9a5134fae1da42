"""What a run leaves behind: `result.json` and `report.png`."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

import matplotlib
import progress

matplotlib.use('Agg')

from matplotlib import pyplot


@dataclasses.dataclass(frozen=True)
class Report:
  """The outcome of a run.

  Attributes:
    mode: how it was trained.
    steps: how many steps all workers did together.
    scores: after each epoch, on the flights for validation.
    auc: of the best of these models, on the held-out flights.
    baseline_auc: what the logistic regression reaches on them.
    num_bytes: on each ps.
  """

  mode: str
  steps: int
  scores: Sequence[progress.Score]
  auc: float
  baseline_auc: float
  num_bytes: Sequence[int]

  @property
  def secs(self) -> float:
    """How long training took, from tracing its first step to the last score."""
    return self.scores[-1].secs

  @property
  def steps_per_sec(self) -> float:
    """The rate from the first epoch's end on, when all is traced."""
    first, last = self.scores[0], self.scores[-1]
    if first.step == last.step:
      return self.steps / self.secs
    return (last.step - first.step) / (last.secs - first.secs)

  def __str__(self) -> str:
    return (
      f'{self.mode}: {self.steps} steps in {self.secs:.1f} seconds, '
      f'{self.steps_per_sec:.1f} steps/s\n'
      f'held-out AUC {self.auc:.4f}, logistic regression '
      f'{self.baseline_auc:.4f}'
    )

  def save(self, folder: pathlib.Path) -> None:
    """Writes it down, as figures and as a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
      'mode': self.mode,
      'auc': self.auc,
      'baseline_auc': self.baseline_auc,
      'steps': self.steps,
      'seconds': self.secs,
      'steps_per_sec': self.steps_per_sec,
      'bytes_per_ps': list(self.num_bytes),
      'scores': [dataclasses.asdict(score) for score in self.scores],
    }
    (folder / 'result.json').write_text(json.dumps(facts, indent=2) + '\n')
    self._draw(folder / 'report.png')

  def _draw(self, path: pathlib.Path) -> None:
    figure, (loss, auc, held_out, ps) = pyplot.subplots(
      1, 4, figsize=(14, 3.4), layout='constrained'
    )
    figure.suptitle(f'Late departures from New York, {self.mode} mode')
    secs = [score.secs for score in self.scores]
    loss.plot(secs, [score.loss for score in self.scores], marker='o')
    loss.set(title='Loss, validation', xlabel='seconds')
    auc.plot(secs, [score.auc for score in self.scores], marker='o')
    auc.set(title='AUC, validation', xlabel='seconds')
    judged = held_out.barh(
      ['logistic\nregression', 'wide & deep'], [self.baseline_auc, self.auc]
    )
    held_out.bar_label(judged, fmt='%.4f', label_type='center', color='white')
    held_out.set(title='AUC, held out', xlim=(0.5, None))
    bars = ps.bar(
      [f'ps:{index}' for index in range(len(self.num_bytes))],
      [num_bytes / 1000 for num_bytes in self.num_bytes],
    )
    ps.bar_label(bars, fmt='%.0f')
    ps.set(title='Variables on each ps', ylabel='kB')
    for axes in (loss, auc, held_out, ps):
      axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
