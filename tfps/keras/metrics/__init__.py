"""Metrics of recommenders and of predicted click rates, for Keras.

Example:
  model.compile('adagrad', 'binary_crossentropy', metrics=[
    metrics.NormalizedEntropy(),
    metrics.Calibration(),
  ])

Where a value is undefined, as without examples, it is NaN: the 0 of Keras' own
metrics would be a perfect normalized entropy.
"""

from tfps.keras.metrics.auc import ExactAUC
from tfps.keras.metrics.auc import GroupedAUC
from tfps.keras.metrics.clicks import Calibration
from tfps.keras.metrics.clicks import NormalizedEntropy
from tfps.keras.metrics.retrieval import NDCGAtK
from tfps.keras.metrics.retrieval import RecallAtK

__all__ = [
  'Calibration',
  'ExactAUC',
  'GroupedAUC',
  'NDCGAtK',
  'NormalizedEntropy',
  'RecallAtK',
]
