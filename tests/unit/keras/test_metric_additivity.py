"""Whether steps only add to metrics is seen in their graphs."""

import pytest
import tensorflow as tf

from tfps.keras import metric_additivity

# By what a step does to a mean and a number: which of them are additive.
STEPS = {
  'adds in place': (lambda m, n, x: m.assign_add(x), (True, True)),
  'assigns a sum': (lambda m, n, x: m.assign(x + m), (True, True)),
  'assigns a difference': (lambda m, n, x: m.assign(m - x), (True, True)),
  'is subtracted': (lambda m, n, x: m.assign(x - m), (False, True)),
  'doubles': (lambda m, n, x: m.assign(m + m), (False, True)),
  'decays': (lambda m, n, x: m.assign(m + 0.1 * (x - m)), (False, True)),
  'decays in place': (lambda m, n, x: m.assign_sub(m - x), (False, True)),
  'adds another': (lambda m, n, x: m.assign_add(n * x), (True, False)),
  'runs': (lambda m, n, x: m.assign_add((x - m) / n), (False, False)),
  'adds in a branch': (
    lambda m, n, x: tf.cond(x > 0, lambda: m.assign_add(x), lambda: m + 0),
    (False, True),
  ),
  'adds what a function reads': (
    lambda m, n, x: m.assign_add(tf.function(lambda: n * x)()),
    (True, False),
  ),
  'only reads': (lambda m, n, x: m / n, (True, True)),
}


@pytest.mark.parametrize('name', STEPS)
def test_variables_to_which_a_step_only_adds_are_found(name):
  step, expected = STEPS[name]
  mean, number = tf.Variable(0.0), tf.Variable(0.0)
  found = []

  @tf.function(autograph=False)
  def traced(x):
    graph = tf.compat.v1.get_default_graph()
    handles = [graph.capture(v.handle) for v in (mean, number)]
    number.assign_add(1.0)
    result = tf.identity(step(mean, number, x))
    found.append(metric_additivity.find(handles, graph.get_operations()))
    return result

  traced.get_concrete_function(tf.TensorSpec([], tf.float32))
  assert tuple(found[0]) == expected
