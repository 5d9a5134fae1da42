from tfps.recovery import worker_states


def test_who_is_silent_is_excluded_and_bare_until_it_is_filled():
  workers = worker_states.WorkerStates()
  workers.registry.accept({0: 10, 1: 11})
  assert workers.update({0: 10, 1: None}) == ({1}, {1})
  assert workers.away() == {1}
  assert workers.update({0: 10, 1: 12}) == (set(), set())  # it was away
  workers.set_excluded(())
  assert workers.away() == set()
  assert workers.is_emptied(1)
  workers.note_refilled(1)
  assert not workers.is_emptied(1)


def test_who_has_restarted_before_anybody_knew_is_emptied():
  workers = worker_states.WorkerStates()
  workers.registry.accept({0: 10})
  assert workers.update({0: 20}) == (set(), {0})
  assert workers.is_emptied(0)
  assert workers.away() == set()


def test_who_is_found_lost_is_waited_for_until_it_is_back():
  workers = worker_states.WorkerStates()
  workers.note_lost(0)
  workers.exclude(1)
  assert workers.away() == {0, 1}
  assert not workers.is_excluded(0)
  workers.note_back([0])
  assert workers.away() == {1}


def test_who_comes_for_the_first_time_has_lost_nothing():
  workers = worker_states.WorkerStates()
  assert workers.update({3: 30}) == (set(), set())
  assert not workers.is_emptied(3)


def test_who_is_excluded_during_an_update_stays_so():
  workers = worker_states.WorkerStates()
  workers.exclude(1)
  workers.update({0: 10, 1: 11, 2: None})
  workers.exclude(3)
  workers.set_excluded([2])
  assert workers.away() == {2, 3}
  workers.update({0: 10, 1: 11, 2: 12, 3: 13})
  workers.set_excluded([])
  assert workers.away() == set()
