import threading

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.eager import executor as executor_lib

from tfps._compat import executors as compat


@pytest.fixture
def shared():
  """An executor that this thread's own can be told from: it is asynchronous."""
  executor = executor_lib.new_executor(enable_async=True)
  with context.executor_scope(executor):
    yield executor


def _is_async():
  return context.context().executor.is_async()


def test_operations_go_through_it_until_the_end(shared):
  assert _is_async()
  with compat.own():
    assert not _is_async()
    assert tf.constant(1.0).numpy() == 1.0
  assert _is_async()


def test_an_error_ends_it(shared):
  with pytest.raises(ZeroDivisionError), compat.own():
    raise ZeroDivisionError
  assert _is_async()


def test_a_stock_scope_in_it_gives_it_back(shared):
  with compat.own():
    with context.executor_scope(shared):
      assert _is_async()
    assert not _is_async()
  assert _is_async()


def test_its_end_waits_for_nobody(shared):
  going_on = threading.Event()

  @tf.function
  def wait():
    return tf.py_function(lambda: going_on.wait(60), [], tf.bool)

  went_on = wait()  # which the shared executor is at
  another = executor_lib.new_executor(enable_async=False)
  with compat.own(), context.executor_scope(another):
    tf.constant(1.0)
  going_on.set()
  assert went_on.numpy()


def test_it_is_there_until_nobody_keeps_it(monkeypatch):
  deleted = []

  def delete(executor):
    deleted.append(executor)
    original(executor)

  original = pywrap_tfe.TFE_DeleteExecutor
  monkeypatch.setattr(pywrap_tfe, 'TFE_DeleteExecutor', delete)
  with compat.kept():
    with compat.kept(), compat.own():
      pass
    num_before = len(deleted)
  assert len(deleted) == num_before + 1
