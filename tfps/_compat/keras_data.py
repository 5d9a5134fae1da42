"""What `tfps.keras` needs of Keras' data adapters; imports Keras."""

from keras.src.trainers.data_adapters import data_adapter

# The trainer takes an instance of this class for what it is.
DataAdapter = data_adapter.DataAdapter
