"""Processes that a fork server is to start."""

import os

import pytest

from tfps import errors
from tfps.launch import forked_process


def test_a_fork_server_that_does_not_answer_is_told():
  status, server = os.pipe()
  with pytest.raises(
    errors.DeadlineError, match=r'within 0\.1 seconds\. Check the load'
  ):
    forked_process.Forked(status, 0.1)
  os.close(server)
