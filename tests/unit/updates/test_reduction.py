"""Sums over workers, as graphs that are traced and not executed."""

import itertools

import pytest
import tensorflow as tf

from tfps.updates.allreduce import reduction as reduction_lib

_TYPES = (tf.float32, tf.int32, tf.bfloat16, tf.float32)


def _collectives(hint):
  """Traces the sums of a step; returns its collectives in this order."""
  device = '/device:GPU:0' if hint == 'nccl' else '/device:CPU:0'
  # A bucket for each tensor.
  reduction = reduction_lib.Reduction(
    0, 2, hint=hint, device=device, bucket_bytes=1
  )

  @tf.function
  def step():
    rows = tf.IndexedSlices(
      tf.ones([2, 3]), tf.constant([5, 1], tf.int64), tf.constant([9, 3])
    )
    tensors = [tf.ones([4], dtype) for dtype in _TYPES]
    with reduction.step(()):
      sums = reduction.sum_all([*tensors, rows], None)
    assert [each.dtype for each in sums] == [*_TYPES, tf.float32]
    return [tf.convert_to_tensor(each) for each in sums]

  graph = step.get_concrete_function().graph
  return [op for op in graph.get_operations() if 'Collective' in op.type]


def _needed_by(op):
  """All operations that are executed before an operation."""
  found, left = set(), [op]
  while left:
    each = left.pop()
    before = {tensor.op for tensor in each.inputs} | {*each.control_inputs}
    left += before - found
    found |= before
  return found


# NCCL adds up what a worker begins first with what the others begin first.
# TensorFlow has a function execute its collectives in the order of tracing.
@pytest.mark.parametrize('hint', ['nccl', 'ring'])
def test_collectives_begin_in_the_same_order_on_all_workers(hint):
  collectives = _collectives(hint)
  assert len(collectives) == 3 + len(_TYPES)
  for earlier, later in itertools.pairwise(collectives):
    assert earlier in _needed_by(later)


@pytest.mark.parametrize(
  ('hint', 'added_up'),
  [
    ('nccl', {tf.float32, tf.int64}),
    ('ring', {tf.float32, tf.int32, tf.int64, tf.bfloat16}),
  ],
)
def test_gpus_send_only_types_that_tensorflow_adds_up_there(hint, added_up):
  assert {op.get_attr('T') for op in _collectives(hint)} == added_up


def test_functions_number_sums_whatever_was_traced_before():
  reduction = reduction_lib.Reduction(0, 2)

  def numbers(trace):
    graph = tf.function(trace).get_concrete_function().graph
    return [
      tf.get_static_value(op.inputs[3].op.inputs[0]).item()
      for op in graph.get_operations()
      if op.type == 'CollectiveReduceV2'
    ]

  def outside():
    for _ in range(2):
      reduction.sum([tf.ones([4])])

  def step(joins=False):
    with reduction.step(()):
      reduction.sum([tf.ones([4])])
      if joins:
        with reduction.step(()):  # copies variables
          outside()
      reduction.sum([tf.ones([4])])

  first, own = numbers(outside), numbers(step)
  assert len({*first, *own}) == 4
  first_of_two, *_, last = numbers(lambda: step(joins=True))
  assert [first_of_two, last] == own
  assert numbers(outside) == first
