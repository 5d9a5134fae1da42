"""What a server offers to graphs is in no SavedModel."""

import pytest
import tensorflow as tf

from tfps._compat import host_functions
from tfps._compat import saved_models


class _Calls(tf.Module):
  @tf.function(input_signature=[])
  def serve(self):
    return host_functions.call('of_servers', [], [tf.int64])[0]


def test_a_function_of_servers_is_named(tmp_path):
  saved_models.take_part()
  with pytest.raises(
    ValueError, match=r"calls b'tfps/of_servers', .*Leave it out of what is s"
  ):
    tf.saved_model.save(_Calls(), str(tmp_path))
