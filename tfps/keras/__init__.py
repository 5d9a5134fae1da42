"""What this package adds to Keras; imports Keras, so import it by need."""

from tfps.keras import optimizers
from tfps.keras.callbacks import StopAtStep

__all__ = ['StopAtStep', 'optimizers']
