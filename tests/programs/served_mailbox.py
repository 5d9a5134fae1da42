"""A server that gets to know a cluster again while it has a client."""

import contextlib
import sys

import tfps
from tfps._compat import server_def
from tfps.cluster.spec import Task
from tfps.server import local_pool
from tfps.server import mailbox as mailbox_lib


def main(times: int) -> None:
  with contextlib.ExitStack() as stack:
    local = stack.enter_context(local_pool.LocalCluster(1, 1))
    strategy = tfps.ParameterServerStrategy(local.cluster)
    stack.callback(strategy.close)
    own = Task('chief', 0)
    address = local.cluster.address(own)
    for _ in range(times):
      with mailbox_lib.Mailbox(address, timeout_secs=30) as mailbox:
        mailbox.post('known')
        server_def.update()
        assert mailbox.read() == 'known'
        server_def.update()
  print('served', times)


if __name__ == '__main__':
  main(int(sys.argv[1]))
