"""Outcomes of a campaign's runs, and their table in Markdown."""

import collections
from collections.abc import Sequence
import dataclasses
import statistics

_MARKS = '<!-- {}: begin -->', '<!-- {}: end -->'


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a run.

  Attributes:
    fault: the fault's kind.
    job: the job of the task that had it.
    mode: the mode of training.
    completed: whether all tasks ended without error and all steps were done.
    resume_secs: seconds from the fault to the end of the next execution.
      Executions that end within 0.3 seconds may have been running before, and
      do not count if a longer pause follows.
    pause_secs: the longest time without an execution after the fault.
    lost: steps that were applied and then rolled back.
    missing: steps that are missing in a variable, at most; None if unknown.
    doubled: steps that were applied twice to a variable, at most; None if
      unknown.
    loss: the highest final loss of all tasks; None if there is none.
    detail: the error's message; '' if there was none.
  """

  fault: str
  job: str
  mode: str
  completed: bool
  resume_secs: float = 0.0
  pause_secs: float = 0.0
  lost: int = 0
  missing: int | None = 0
  doubled: int | None = 0
  loss: float | None = None
  detail: str = ''


def table(outcomes: Sequence[Outcome]) -> str:
  """Returns a Markdown table with a line for each fault, job and mode."""
  lines = [
    '| fault | task | mode | completed | seconds to resume '
    '| longest pause | lost | missing | doubled | final loss |',
    f'|{"---|" * 10}',
  ]
  groups = collections.defaultdict(list)
  for outcome in outcomes:
    groups[outcome.fault, outcome.job, outcome.mode].append(outcome)
  for (fault, job, mode), group in groups.items():
    good = [outcome for outcome in group if outcome.completed]
    cells = [fault, job, mode, f'{len(good)} of {len(group)}']
    if good:
      cells += [
        _format_secs([outcome.resume_secs for outcome in good]),
        _format_secs([outcome.pause_secs for outcome in good]),
        f'{max(outcome.lost for outcome in good)}',
        _format_max([outcome.missing for outcome in good]),
        _format_max([outcome.doubled for outcome in good]),
        _format_losses([o.loss for o in good if o.loss is not None]),
      ]
    else:
      cells += [''] * 6
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def with_table(page: str, text: str, *, name: str) -> str:
  """Replaces the text between two marks of a page.

  Args:
    page: the page in Markdown.
    text: the new text, such as a table.
    name: the marks' name.

  Returns:
    The page with the new text.

  Raises:
    ValueError: the page does not have marks of that name.
  """
  begin, end = (mark.format(name) for mark in _MARKS)
  before, found, rest = page.partition(begin)
  _, also_found, after = rest.partition(end)
  if not (found and also_found):
    raise ValueError(f'The page lacks {begin!r} or, after it, {end!r}.')
  return f'{before}{begin}\n\n{text}\n\n{end}{after}'


def _format_secs(secs: Sequence[float]) -> str:
  return f'{statistics.median(secs):.1f} ({min(secs):.1f}..{max(secs):.1f})'


def _format_max(counts: Sequence[int | None]) -> str:
  return str(max((c for c in counts if c is not None), default=''))


def _format_losses(losses: Sequence[float]) -> str:
  if not losses:
    return ''
  return f'{min(losses):.4f}..{max(losses):.4f}'
