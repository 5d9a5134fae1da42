"""Lines of a program's output that its user has not asked for."""

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
