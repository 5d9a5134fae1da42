"""Connection of a driver to a Ray cluster, with errors that come soon."""

import os
import socket
from typing import Any

from tfps import errors
from tfps._utils import timeouts


def connected() -> Any:
  """Returns the module ray, connected to a cluster.

  Raises:
    ImportError: it is not installed.
    errors.UnreachableError: there is no cluster at RAY_ADDRESS.
  """
  try:
    import ray
    import ray.util.scheduling_strategies
  except ImportError as error:
    raise ImportError(
      f"{error}. Install the extra 'ray': pip install 'tfps[ray]'."
    ) from error
  if not ray.is_initialized():
    _check_address(os.environ.get('RAY_ADDRESS', ''))
    ray.init()
  return ray


def _check_address(address: str) -> None:
  """Connects to a cluster's address, for which Ray would take minutes.

  Raises:
    errors.UnreachableError: nobody answers there.
  """
  host, colon, port = address.removeprefix('ray://').rpartition(':')
  if not colon or not port.isdecimal():
    return  # such as 'auto'
  try:
    secs = timeouts.current().call_secs
    socket.create_connection((host, int(port)), secs).close()
  except OSError as error:
    raise errors.UnreachableError(
      f'RAY_ADDRESS={address}: {error}. Start a cluster by `ray start --head`, '
      'or unset the variable for one on this machine.'
    ) from error
