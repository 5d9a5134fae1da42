"""Codecs, which compress floats that travel between workers and ps.

Users write `tfps.codecs.Int8()`. Custom codecs subclass `Codec`.
"""

from tfps.wire.codecs.casts import BFloat16
from tfps.wire.codecs.casts import Float16
from tfps.wire.codecs.codec import Codec
from tfps.wire.codecs.error_feedback import ErrorFeedback
from tfps.wire.codecs.int8 import Int8
from tfps.wire.codecs.one_bit import OneBit
from tfps.wire.codecs.sparse import RandomK
from tfps.wire.codecs.sparse import TopK

__all__ = [
  'BFloat16',
  'Codec',
  'ErrorFeedback',
  'Float16',
  'Int8',
  'OneBit',
  'RandomK',
  'TopK',
]
