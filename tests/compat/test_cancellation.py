"""What one thread calls is not cancelled with what others do."""

import threading

from tensorflow.python.eager import cancellation as tf_cancellation

from tfps._compat import cancellation


def test_each_thread_has_its_own_manager():
  cancellation.keep_apart()
  manager, seen = tf_cancellation.CancellationManager(), []
  with tf_cancellation.CancellationManagerContext(manager):
    other = threading.Thread(
      target=lambda: seen.append(tf_cancellation.context())
    )
    other.start()
    other.join()
    assert tf_cancellation.context() is manager
  assert seen == [None]
  assert tf_cancellation.context() is None
