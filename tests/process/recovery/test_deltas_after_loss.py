"""Deltas are right again after the loss of a ps between two writes."""

import keras
import numpy as np
import pytest

from tests.support import losses
import tfps
from tfps import testing

_NEVER = 1e6  # seconds: the test writes when it wants to


@pytest.mark.exhaustive
@pytest.mark.parametrize('has_failed', [False, True])
def test_what_was_restored_is_in_the_next_delta(tmp_path, has_failed):
  with testing.ProcessCluster(1, 2) as processes:
    strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      recovery=tfps.Recovery(tmp_path / 'recovery', every_secs=0.5),
    )
    with strategy.scope():
      ids = keras.Input((), dtype='int64')
      layer = tfps.embeddings.Embedding(2, name='keyed')
      model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
      model.compile('adagrad', 'mse', steps_per_execution=2)
    deltas = tfps.serving.Deltas(tmp_path / 'deltas', _NEVER)
    keys = np.arange(3000)

    def fit(first, last, *callbacks):
      model.fit(
        keys[first:last],
        np.ones([last - first, 1]),
        batch_size=50,
        verbose=0,
        callbacks=callbacks,
      )

    fit(0, 1000, deltas)
    losses.lose(processes, ('ps', 1))()
    if has_failed:
      deltas.stop()  # whose write may fail
    fit(500, 3000)
    deltas.write()
    reader = tfps.serving.DeltaReader(tmp_path / 'deltas')
    np.testing.assert_allclose(
      reader(keys), model(keys, training=False), rtol=1e-5
    )
    for variable, other in zip(
      model.variables, reader.model.variables, strict=True
    ):
      np.testing.assert_array_equal(variable.numpy(), other.numpy())
    strategy.close()
