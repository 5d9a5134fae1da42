"""A server of predictions that follows training, as the evaluator runs it."""

import dataclasses
import json
import pathlib
import time

import inputs
import numpy as np

import tfps

_REFRESH_EVERY_SECS = 0.5
_ROWS_OF_A_REQUEST = 4096
_PATIENCE_SECS = 300.0


@dataclasses.dataclass(frozen=True)
class Score:
  """How good a version of the model is.

  Attributes:
    base: number of the version's base.
    sequence: number of its last delta; 0 for the base itself.
    auc: area under the ROC curve on the held-out rows.
  """

  base: int
  sequence: int
  auc: float


def follow(
  deltas: pathlib.Path, end: pathlib.Path, held_out: inputs.HeldOut
) -> list[Score]:
  """Scores held-out rows with each version that comes, and says how well.

  Args:
    deltas: folder that deltas are written to.
    end: file that is there after the last one.
    held_out: the rows.

  Returns:
    The scores, the last version's last.

  Raises:
    TimeoutError: there was no base in time.
  """
  _wait_for_base(deltas)
  reader = tfps.serving.DeltaReader(deltas)
  scores = [_score(reader, held_out)]
  is_over = False
  while not is_over:
    time.sleep(_REFRESH_EVERY_SECS)
    is_over = end.exists()  # asked first: then no delta comes after these
    before = reader.version
    reader.refresh()
    if reader.version != before:  # by deltas, or by a newer base alone
      scores.append(_score(reader, held_out))
  return scores


def save(scores: list[Score], path: pathlib.Path) -> None:
  """Writes scores to a file of JSON."""
  path.write_text(json.dumps([dataclasses.asdict(s) for s in scores]) + '\n')


def _wait_for_base(deltas: pathlib.Path) -> None:
  began_at = time.monotonic()
  while not any(deltas.glob('base-*')):
    if time.monotonic() > began_at + _PATIENCE_SECS:
      raise TimeoutError(
        f'{deltas}: no base within {_PATIENCE_SECS:g} seconds.'
      )
    time.sleep(_REFRESH_EVERY_SECS)


def _score(reader: tfps.serving.DeltaReader, held_out: inputs.HeldOut) -> Score:
  size = _ROWS_OF_A_REQUEST
  clicks = [
    reader({n: values[i : i + size] for n, values in held_out.inputs.items()})
    for i in range(0, len(held_out.clicked), size)
  ]
  auc = held_out.auc(np.concatenate(clicks))
  base, sequence = reader.version
  print(f'base {base}, delta {sequence}: held-out AUC {auc:.4f}', flush=True)
  return Score(base, sequence, auc)
