"""Workers that have joined a cluster which does not list them.

They say hello to all ps, which post whom they have heard of that way.
"""

from collections.abc import Mapping
import json

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

_BOARD = 'tfps_latecomers'

Addresses = Mapping[spec_lib.Task, str]


def post(
  mailbox: mailbox_lib.Mailbox, clients: Addresses, cluster: spec_lib.Cluster
) -> None:
  """Tells of those clients that a cluster does not list.

  Args:
    mailbox: of the ps that knows them.
    clients: those that are not done, with their addresses.
    cluster: the ps' own.
  """
  listed = cluster.tasks()
  found = {str(c): address for c, address in clients.items() if c not in listed}
  if found or mailbox.read(_BOARD) is not None:
    mailbox.post(json.dumps(found), _BOARD)


def find(servers: Addresses) -> set[spec_lib.Task]:
  """Those that may be alive, according to the first ps that answers.

  Args:
    servers: the ps, with their addresses.
  """
  for server, address in servers.items():
    if health.is_alive(server, address):
      try:
        with mailbox_lib.Mailbox(
          server, address, timeout_secs=timeouts.current().call_secs
        ) as mailbox:
          posted = json.loads(mailbox.read(_BOARD) or '{}')
      except tf.errors.OpError as error:  # since then
        logging.warning('%s: %s', server, errors.first_line(error))
        continue
      return health.may_be_alive(
        {spec_lib.Task.parse(name): at for name, at in posted.items()}
      )
  return set()
