"""A clock, servers and flows."""

import pytest

from tfps.plan import simulation


def _run(build, **kwargs):
  """What has happened, and when."""
  made = simulation.Simulation({'link': 100.0}, {'a': ['link']}, **kwargs)
  seen = {}

  def note(name):
    return lambda: seen.__setitem__(name, made.now)

  build(made, note)
  made.run()
  return seen


def test_a_server_does_one_thing_after_another():
  def build(made, note):
    made.work('cpu', 2.0, note('first'))
    made.work('cpu', 3.0, note('second'))
    made.work('other', 4.0, note('beside'))

  seen = _run(build)
  assert seen == pytest.approx({'first': 2, 'beside': 4, 'second': 5})


def test_servers_may_share_cpus():
  def build(made, note):
    for name in ('a', 'b', 'c'):
      made.work(name, 2.0, note(name))

  assert _run(build, num_cpus=2) == pytest.approx({'a': 2, 'b': 2, 'c': 4})


@pytest.mark.parametrize('most', [None, {'a': 50.0}], ids=str)
def test_messages_of_a_flow_come_one_after_the_other(most):
  def build(made, note):
    for i in range(3):
      made.send('a', 50.0, note(i))

  secs = 0.5 if most is None else 1
  expected = {i: (i + 1) * secs for i in range(3)}
  assert _run(build, max_rates=most) == pytest.approx(expected)


def test_it_tells_how_busy_all_have_been():
  made = simulation.Simulation(
    {'link': 100.0, 'idle': 1.0}, {'a': ['link'], 'b': ['idle']}
  )
  made.send('a', 50.0, lambda: None)
  made.work('cpu', 3.0, lambda: None)
  made.run()
  assert made.busy_secs() == pytest.approx({'link': 0.5, 'idle': 0, 'cpu': 3})


def test_nothing_takes_no_link():
  seen = _run(lambda made, note: made.send('a', 0, note('sent')))
  assert seen == {'sent': 0}
