"""TensorFlow without Keras, for processes that may never use it.

The last thing that `import tensorflow` does is to import `keras.src`, and with
it scikit-learn, pandas and more where they are installed. It is there to know
Keras' optimizers when a SavedModel is loaded; TensorFlow goes on without it if
the import fails.
"""

import sys

_INSIDES = 'keras.src'


def import_tensorflow() -> None:
  """Imports TensorFlow and leaves Keras to be imported when it is used.

  `import keras` and `tf.keras` work afterwards as ever. Does nothing if either
  has been imported before.
  """
  if 'tensorflow' in sys.modules or 'keras' in sys.modules:
    return
  # This makes the import fail, and Keras' place is still found: TensorFlow
  # looks for it to offer `tensorflow.keras`.
  sys.modules[_INSIDES] = None  # type: ignore[assignment]
  try:
    import tensorflow  # noqa: F401
  finally:
    del sys.modules[_INSIDES]
