import math

import pytest

from tfps.training import hooks


def progress(step, secs, moment='step', num_steps=10, **metrics):
  return hooks.Progress(
    moment=moment,
    step=step,
    steps=100,
    metrics=metrics,
    steps_per_sec=4.0,
    elapsed_secs=secs,
    num_steps=num_steps,
  )


@pytest.mark.parametrize(
  ('step', 'rate', 'eta_secs'),
  [(0, 4.0, 25.0), (60, 4.0, 10.0), (100, 4.0, 0.0), (60, 0.0, math.inf)],
)
def test_the_time_left_follows_from_the_rate(step, rate, eta_secs):
  at = hooks.Progress(
    moment='step',
    step=step,
    steps=100,
    metrics={},
    steps_per_sec=rate,
    elapsed_secs=1.0,
  )
  assert at.eta_secs == eta_secs


@pytest.mark.parametrize(
  ('period', 'steps_seen'),
  [
    ({'steps': 20}, [20, 40, 60, 80, 100, 100]),
    ({'steps': 30}, [30, 60, 90, 100]),
    ({'secs': 5.0}, [50, 100, 100]),
    ({'secs': 1000.0}, [100]),
  ],
)
def test_every_passes_on_progress_now_and_then_and_at_the_end(
  period, steps_seen
):
  seen = []
  hook = hooks.Every(lambda p: seen.append(p.step), **period)
  hook(progress(0, 0.0, 'begin'))
  for step in range(10, 101, 10):
    hook(progress(step, step / 10))
  hook(progress(100, 10.0, 'end'))
  assert seen == steps_seen


@pytest.mark.parametrize('period', [{}, {'steps': 1, 'secs': 1.0}])
def test_every_needs_one_period(period):
  with pytest.raises(ValueError, match='either secs or steps'):
    hooks.Every(print, **period)


def test_the_log_has_one_line_a_period_and_one_for_the_rest():
  lines = []
  log = hooks.LogProgress(every_secs=10.0, log=lines.append)
  log(progress(0, 1.0, 'begin'))
  for step in range(10, 101, 10):
    log(progress(step, 1.0 + step / 4, loss=step))
  log(progress(100, 26.0, 'end'))
  assert lines == [
    'Preparing the step.',
    'step 10 of 100, prepared in 3.5 s',
    'step 50 of 100, 4.0 steps/s, 0:00:12 left, loss 30',
    'step 90 of 100, 4.0 steps/s, 0:00:02 left, loss 75',
    'step 100 of 100, 4.0 steps/s, 0:00:00 left, loss 100',
  ]
  assert log.metrics == {'loss': 100.0}


def test_the_log_has_no_time_left_above_the_last_step():
  lines = []
  log = hooks.LogProgress(every_secs=10.0, log=lines.append)
  log(progress(0, 0.0, 'begin'))
  log(progress(80, 20.0))
  log(progress(120, 30.0))
  assert lines[2:] == ['step 120 of 100, 4.0 steps/s, 0:00:00 left']


def test_the_log_has_no_rate_if_all_is_done_in_one_execution():
  lines = []
  log = hooks.LogProgress(log=lines.append)
  log(progress(0, 0.0, 'begin'))
  log(progress(100, 3.0, loss=1.0))
  log(progress(100, 3.0, 'end'))
  assert lines[1:] == [
    'step 100 of 100, prepared in 3.0 s',
    'step 100 of 100, 0:00:00 left, loss 1',
  ]
  assert log.metrics == {'loss': 1.0}


def test_the_log_weighs_metrics_by_steps():
  log = hooks.LogProgress(every_secs=10.0, log=lambda line: None)
  log(progress(50, 0.0, 'begin'))
  log(progress(80, 1.0, num_steps=30, loss=1.0))
  log(progress(90, 2.0, num_steps=10, loss=5.0))
  log(progress(90, 2.0, 'end'))
  assert log.metrics == {'loss': 2.0}


def test_the_log_weighs_all_executions_of_the_same_steps():
  log = hooks.LogProgress(every_secs=10.0, log=lambda line: None)
  log(progress(0, 0.0, 'begin'))
  for step in (10, 20):
    for loss in (1.0, 2.0, 6.0):
      log(progress(step, 1.0, loss=loss))
  log(progress(20, 2.0, 'end', num_steps=0))
  assert log.metrics == {'loss': 3.0}


def test_a_line_after_no_steps_has_no_metrics():
  lines = []
  log = hooks.LogProgress(every_secs=0.0, log=lines.append)
  log(progress(0, 0.0, 'begin'))
  log(progress(10, 1.0))
  log(progress(10, 1.0, num_steps=0, loss=1.0))
  assert log.metrics == {}
  log(progress(20, 2.0, loss=1.0))
  log(progress(20, 2.0, 'end', num_steps=0))
  assert ['loss' in line for line in lines[2:]] == [False, True, False]
  assert log.metrics == {'loss': 1.0}
