"""Set before TensorFlow is imported, and inherited by the tests' processes."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
