"""Steps of a closed strategy are refused, as its workers may have ended."""

import keras
import numpy as np
import pytest

import tfps


@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
def test_nobody_waits_for_workers_that_were_told_to_end(tfps_cluster):
  x = np.ones([8, 4], 'f')
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
  model.fit(x, x[:, :1], verbose=0)
  strategy.close()
  with pytest.raises(RuntimeError, match='it is closed, so that its ps'):
    model.predict(x, verbose=0)
