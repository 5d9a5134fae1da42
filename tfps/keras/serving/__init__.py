"""Serving of models while they are trained: a base, and deltas of its rows."""

from tfps.keras.serving.callback import Deltas as Deltas
from tfps.keras.serving.reader import DeltaReader as DeltaReader
from tfps.keras.serving.vectors import export_vectors as export_vectors
