"""Embeddings keyed by any id: tables without a vocabulary, which grow."""

from tfps.keras.embeddings.layer import Embedding as Embedding
from tfps.keras.embeddings.table import Table as Table
from tfps.updates.tables.admission import BloomCounter as BloomCounter
from tfps.updates.tables.admission import Counter as Counter
from tfps.updates.tables.admission import Probability as Probability
from tfps.updates.tables.eviction import Lfu as Lfu
from tfps.updates.tables.eviction import Lru as Lru
from tfps.updates.tables.eviction import Ttl as Ttl
from tfps.updates.tables.storage import Storage as Storage
