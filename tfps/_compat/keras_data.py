"""What `tfps.keras` needs of Keras' data adapters; imports Keras."""

from typing import Any

from keras.src.trainers.data_adapters import data_adapter
from keras.src.trainers.data_adapters import generator_data_adapter

# The trainer takes an instance of this class for what it is.
DataAdapter = data_adapter.DataAdapter


def is_generator(adapter: Any) -> bool:
  """Whether an adapter's dataset cannot be begun anew."""
  return isinstance(adapter, generator_data_adapter.GeneratorDataAdapter)
