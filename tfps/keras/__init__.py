"""Additions to Keras for users; importing them imports Keras."""

from tfps.keras import metrics
from tfps.keras import optimizers
from tfps.keras.callbacks import EvaluatePredictions
from tfps.keras.callbacks import MarkTrainingEnd
from tfps.keras.callbacks import StopAtStep

__all__ = [
  'EvaluatePredictions',
  'MarkTrainingEnd',
  'StopAtStep',
  'metrics',
  'optimizers',
]
