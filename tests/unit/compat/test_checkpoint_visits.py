"""Canaries for restores that `tfps._compat.checkpoint_visits` takes part in."""

import pytest
import tensorflow as tf

from tfps._compat import checkpoint_visits


class _Parts(tf.Module):
  """Has any number of parts, all of which get the sum of those saved."""

  def __init__(self, values):
    super().__init__()
    self.parts = []
    for i, value in enumerate(values):
      self.parts.append(tf.Variable(value))
      setattr(self, f'part_{i}', self.parts[-1])
    self.visits = []

  def visit(self, visit):
    self.visits.append(visit)
    saved = visit.nodes()[visit.node]
    nodes = [n for name, n in saved.items() if name.startswith('part_')]
    reader = tf.train.load_checkpoint(visit.path)

    def restore():
      total = sum(reader.get_tensor(visit.key(node)) for node in nodes)
      for part in self.parts:
        part.assign(total)

    first = self.parts[0]
    others = [part for part in self.parts if part is not first]
    visit.restore_otherwise([(n, first) for n in nodes], others, 1, restore)
    return True


def _visit(visit):
  return isinstance(visit.found, _Parts) and visit.found.visit(visit)


@pytest.fixture(autouse=True)
def _takes_part():
  checkpoint_visits.take_part(_visit)


@pytest.mark.parametrize('number', [1, 2, 5])
def test_an_object_is_restored_from_another_number_of_parts(tmp_path, number):
  saved = tf.train.Checkpoint(parts=_Parts([1, 2, 4]), other=tf.Variable(7))
  path = saved.save(tmp_path / 'saved')
  parts, other = _Parts([0] * number), tf.Variable(0)
  status = tf.train.Checkpoint(parts=parts, other=other).restore(path)
  status.assert_consumed()
  assert [part.numpy() for part in parts.parts] == [7] * number
  assert other.numpy() == 7


class _Fact:
  def __init__(self, visit):
    self.node = visit.node


class _Backwards(tf.Module):
  """Has parts in another order than when it was saved, once it is filled."""

  def __init__(self):
    super().__init__()
    self.parts = []

  def fill(self, values):
    self.parts += [tf.Variable(value) for value in values]
    for i, part in enumerate(self.parts):
      setattr(self, f'part_{i}', part)

  def restore(self, visit):
    saved = visit.nodes()[visit.node]
    for i, part in enumerate(reversed(self.parts)):
      visit.restore(saved[f'part_{i}'], part)
    return True


_WAITING = []


def _wait_or_restore(visit):
  if not isinstance(visit.found, _Backwards):
    return False
  if visit.found.parts:
    return visit.found.restore(visit)
  _WAITING.append(visit)
  return True


def test_parts_that_come_later_are_restored_from_others(tmp_path):
  saved = _Backwards()
  saved.fill([1, 2, 3])
  path = tf.train.Checkpoint(some=saved).save(tmp_path / 'saved')
  checkpoint_visits.take_part(_wait_or_restore)
  made = _Backwards()
  status = tf.train.Checkpoint(some=made).restore(path)
  made.fill([0, 0, 0])
  assert [part.numpy() for part in made.parts] == [0, 0, 0]
  _WAITING.pop().resume()
  assert [part.numpy() for part in made.parts] == [3, 2, 1]
  status.assert_existing_objects_matched()


def test_what_is_found_out_once_is_known_to_all_visits_of_a_restore(tmp_path):
  path = tf.train.Checkpoint(a=_Parts([1]), b=_Parts([2])).save(tmp_path / 's')
  a, b = _Parts([0]), _Parts([0])
  tf.train.Checkpoint(a=a, b=b).restore(path)
  assert a.visits[0].once(_Fact) is b.visits[0].once(_Fact)
