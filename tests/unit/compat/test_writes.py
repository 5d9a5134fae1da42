"""What a function writes to is found, and can be put in order."""

import tensorflow as tf

from tfps._compat import writes


def _trace(function):
  tf.function(function, autograph=False).get_concrete_function()


def test_all_ways_to_write_are_found_and_reads_are_not():
  variable = tf.Variable(1.0)
  found = {}

  @tf.function
  def add():
    variable.assign_add(1.0)

  def loop(i):
    variable.assign_add(1.0)
    return (i + 1,)

  def function():
    variable.assign(0.0)  # left out
    first = writes.num_operations()
    variable.read_value()
    tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    variable.assign_add(1.0)
    add()
    tf.cond(variable > 1.0, lambda: variable.assign(2.0), lambda: 1.0)
    tf.while_loop(lambda i: i < 3, loop, (0,))
    found.update(writes.by_place(first))

  _trace(function)
  ((place, operations),) = found.items()
  assert place == writes.Place(variable.device, is_replica=False)
  types = [operation.type for operation in operations]
  kinds = ('AssignAddVariableOp', 'PartitionedCall', 'If', 'While')
  assert len(types) == 4
  assert all(kind in found for kind, found in zip(kinds, types, strict=True)), (
    types
  )


def test_what_a_loop_writes_to_is_found_within_it():
  variable = tf.Variable(1.0)
  found = []

  def loop(i):
    first = writes.num_operations()
    variable.assign_add(1.0)
    found.extend(writes.by_place(first))
    return (i + 1,)

  _trace(lambda: tf.while_loop(lambda i: i < 3, loop, (0,)))
  assert found == [writes.Place(variable.device, is_replica=False)]


def test_writes_can_wait_for_others():
  first, second = tf.Variable(0.0), tf.Variable(0.0)
  orders = []

  def function():
    before = tf.raw_ops.AssignAddVariableOp(resource=first.handle, value=1.0)
    after = tf.raw_ops.AssignAddVariableOp(resource=second.handle, value=1.0)
    writes.put_after(before, [after])
    orders.append(before in after.control_inputs)

  _trace(function)
  assert orders == [True]


def test_a_thread_has_a_device_outside_of_functions():
  assert writes.current_device() == ''
  with tf.device('/job:worker/task:1'):
    spec = tf.DeviceSpec.from_string(writes.current_device())
  assert (spec.job, spec.task) == ('worker', 1)


def test_a_count_waits_for_a_write_that_needs_the_batch():
  weight, count = tf.Variable(0.0), tf.Variable(0)
  batches = iter(tf.data.Dataset.from_tensors(1.0))
  others = []

  def function():
    first = writes.num_operations()
    batch = next(batches)
    weight.assign_add(batch)
    count.assign_add(1)
    before = _control_inputs(first)
    writes.put_last(first)
    others.extend(
      (operation.inputs[1].dtype, [other.type for other in given])
      for operation, given in _added(first, before)
    )

  _trace(function)
  assert others == [(tf.int32, ['AssignAddVariableOp'])]


def test_a_count_alone_waits_for_the_batch_itself():
  count = tf.Variable(0)
  batches = iter(tf.data.Dataset.from_tensors(1.0))
  others = []

  def function():
    first = writes.num_operations()
    next(batches)
    count.assign_add(1)
    before = _control_inputs(first)
    writes.put_last(first)
    others.extend(
      [other.type for other in given] for _, given in _added(first, before)
    )

  _trace(function)
  assert others == [['IteratorGetNext']]


def _control_inputs(first):
  """Returns each operation's control inputs."""
  graph = tf.compat.v1.get_default_graph()
  return {
    operation: list(operation.control_inputs)
    for operation in graph.get_operations()[first:]
  }


def _added(first, before):
  """Yields the operations that have got control inputs, with these."""
  for operation, now in _control_inputs(first).items():
    if added := [other for other in now if other not in before[operation]]:
      yield operation, added
