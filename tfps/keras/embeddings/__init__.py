"""Embeddings keyed by any id: tables without a vocabulary, which grow."""

from tfps.keras.embeddings.layer import Embedding as Embedding
from tfps.keras.embeddings.table import Table as Table
