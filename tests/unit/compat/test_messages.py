"""Lines of a program's output that its user has not asked for."""

import logging

from absl import logging as absl_logging
import pytest

from tfps._compat import messages

_LOADING = (
  b'WARNING: All log messages before absl::InitializeLog() is called are\n',
  b'I0000 00:00:1795659448.698373   44921 cudart_stub.cc:31] Could not\n',
)
_OTHERS = (
  b'E0000 00:00:1795659452.254525   44921 cuda_platform.cc:52] failed\n',
  b'I1126 02:17:32.254896 1401249 resolver.py:77] chief:0 is in the cluster\n',
  b'Epoch 1/4\n',
)


@pytest.mark.parametrize('line', [*_LOADING, *_OTHERS])
def test_what_is_written_while_libraries_are_loaded_is_hidden(line):
  assert messages.is_shown(line, {messages.LEVEL: '3'}) == (line in _OTHERS)
  assert messages.is_shown(line, {messages.LEVEL: '0'})


def test_only_the_handler_that_writes_a_second_time_is_removed(monkeypatch):
  logger = logging.getLogger('tensorflow')
  own, second = logging.NullHandler(), logging.StreamHandler()
  monkeypatch.setattr(logger, 'handlers', [own, second])
  logger.warning('Without Abseil nobody writes it twice.')
  assert logger.handlers == [own, second]
  handlers = [absl_logging.get_absl_handler()]
  monkeypatch.setattr(logging.root, 'handlers', handlers)
  logger.warning('With it, somebody does.')
  assert logger.handlers == [own]
