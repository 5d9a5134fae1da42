import tensorflow as tf

from tfps._compat import locks as compat


def _lock():
  lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2())
  tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


def test_functions_do_not_order_locks():
  compat.let_devices_go_on()

  @tf.function
  def twice():
    _lock()
    _lock()

  operations = twice.get_concrete_function().graph.get_operations()
  consumers = [op for op in operations if op.type == 'ConsumeMutexLock']
  makers = [op for op in operations if op.type == 'MutexV2']
  assert len(consumers) == len(makers) == 2
  assert not any(op.control_inputs for op in consumers + makers)


def test_functions_do_not_order_handles():
  compat.let_devices_go_on()

  @tf.function
  def two():
    for name in ('first', 'second'):
      tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)

  operations = two.get_concrete_function().graph.get_operations()
  assert len(operations) == 2
  assert not any(operation.control_inputs for operation in operations)


def test_functions_do_not_order_handles_of_hash_tables():
  compat.let_devices_go_on()

  @tf.function
  def two():
    for name in ('first', 'second'):
      tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.int64, shared_name=name
      )

  graph = two.get_concrete_function().graph
  assert len(graph.get_operations()) == 2
  assert not any(
    operation.control_inputs for operation in graph.get_operations()
  )
  # Nor does anything wait for one that is not used.
  assert not graph.control_outputs


def test_functions_put_writes_and_this_check_in_order():
  variable = tf.Variable(1.0)

  @tf.function
  def write_and_check():
    write = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=2.0)
    read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
    check = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    nonlocal names
    names = [write.name, read.op.name, check.op.name]
    return read

  names = []
  graph = write_and_check.get_concrete_function().graph
  write, read, check = (graph.get_operation_by_name(name) for name in names)
  assert write in read.control_inputs
  assert read in check.control_inputs


def test_critical_sections_of_others_still_exclude_each_other():
  # They are made of the same operations.
  compat.let_devices_go_on()
  section = tf.CriticalSection()
  variable = tf.Variable(1.0)

  @tf.function
  def both():
    section.execute(lambda: variable.assign_add(1.0))
    return section.execute(lambda: variable.assign(variable * 10.0))

  assert [float(both()) for _ in range(2)] == [20.0, 210.0]
