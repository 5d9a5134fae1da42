"""Base class of Keras' data adapters; this module imports Keras."""

from keras.src.trainers.data_adapters import data_adapter

# The trainer uses an instance of this class as it is.
DataAdapter = data_adapter.DataAdapter
