"""Data adapters of Keras and their parts; this module imports Keras."""

from keras.src.trainers.data_adapters import data_adapter
from keras.src.trainers.data_adapters import tf_dataset_adapter

# The trainer uses an instance of this class as it is.
DataAdapter = data_adapter.DataAdapter

# What `fit(dataset, class_weight=...)` maps a dataset with.
make_class_weight_fn = tf_dataset_adapter.make_class_weight_map_fn
