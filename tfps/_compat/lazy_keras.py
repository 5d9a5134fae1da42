"""Import of TensorFlow without Keras, for processes that may never use it.

At its end, `import tensorflow` imports `keras.src`, and with it scikit-learn,
pandas and more where they are installed. It does so to know Keras' optimizers
when a SavedModel is loaded, and continues if the import fails.
"""

import gc
import sys

_MODULE = 'keras.src'


def import_tensorflow() -> None:
  """Imports TensorFlow; Keras is imported when it is first used.

  `import keras` and `tf.keras` work afterwards as usual. Does nothing if
  TensorFlow or Keras has been imported before. Garbage collection ignores what
  there is afterwards, through which it would look for a second as the process
  ends.
  """
  if 'tensorflow' in sys.modules or 'keras' in sys.modules:
    return
  # The import of this module fails, but `keras` itself is still found, which
  # TensorFlow needs to offer `tensorflow.keras`.
  sys.modules[_MODULE] = None  # type: ignore[assignment]
  try:
    import tensorflow  # noqa: F401
  finally:
    del sys.modules[_MODULE]
  gc.freeze()
