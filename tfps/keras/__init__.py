"""Additions to Keras for users; importing them imports Keras."""

from tfps.keras import optimizers
from tfps.keras.callbacks import MarkTrainingEnd
from tfps.keras.callbacks import StopAtStep

__all__ = ['MarkTrainingEnd', 'StopAtStep', 'optimizers']
