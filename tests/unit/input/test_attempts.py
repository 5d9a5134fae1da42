"""Attempts at steps, among workers that agree on who does some."""

import contextlib
import types

import pytest

from tfps.training import queue_attempts
from tfps.updates.sync import participation


class _Feed:
  """One that has no batches, and has seen the end of an epoch."""

  finished = True
  busy = in_use = contextlib.nullcontext

  def gather(self, wanted, taking, until):
    del wanted, taking, until
    return 0


@pytest.fixture
def attempt():
  def attempt(turnout):
    nothing = lambda *args: None  # noqa: E731
    sync_session = types.SimpleNamespace(
      worker=lambda: 0,
      enter=nothing,
      leave=nothing,
      step_out=nothing,
      agree=lambda ready, finished: turnout,
      settle=lambda: True,
      step_log=None,
      waits=True,
    )
    steps = types.SimpleNamespace(
      num_steps=2,
      sizes=(1,),
      sync_session=sync_session,
      join=list,
    )
    feed = _Feed()
    feeds = types.SimpleNamespace(
      here=lambda: feed, taking=None, until=3, finished=False
    )
    made = queue_attempts.Attempt(feeds, 2, steps)
    assert made(None) == []
    return made, feeds

  return attempt


def test_who_is_an_epoch_behind_goes_along_with_the_others(attempt):
  others_work = participation.StepDecision(
    0, finished=False, is_idle=False, is_partial=True
  )
  made, feeds = attempt(others_work)
  assert made.sat_out
  assert (feeds.until, feeds.finished) == (4, False)


def test_an_epoch_ends_where_nobody_has_batches(attempt):
  made, feeds = attempt(
    participation.StepDecision(0, finished=True, is_idle=True)
  )
  assert not made.sat_out
  assert (feeds.until, feeds.finished) == (3, True)
