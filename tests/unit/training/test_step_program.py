"""What the vector of an execution's function holds."""

import numpy as np
import pytest

from tfps.training import step_program


@pytest.fixture
def execution():
  return step_program.Execution(
    function=None,
    names=('loss', 'accuracy'),
    num_steps=1,
    is_logged=False,
    marked=frozenset(),
  )


def test_a_vector_has_the_step_metrics_and_bytes_of_each_ps(execution):
  vector = np.array([7, 0.5, 0.25, 100, 200, 10, 20])
  assert execution.step_after(vector) == 7
  assert execution.metrics(vector) == {'loss': 0.5, 'accuracy': 0.25}
  assert execution.num_bytes(vector).tolist() == [[100, 200], [10, 20]]


def test_executions_have_the_last_step_mean_metrics_and_all_bytes(execution):
  joined = execution.join([[7, 0.5, 0, 100, 10], [9, 1.5, 1, 300, 30]])
  assert joined.tolist() == [9, 1, 0.5, 400, 40]
