"""Resolver of a chief that has a coordinator, with the chief's address."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps._compat import strategy as compat
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.cluster import topology
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.server import server as server_lib


def resolver_for(cluster: Any) -> Any:
  """Returns the resolver of a chief's cluster.

  Args:
    cluster: a `tfps.Cluster`, or already a resolver. An empty cluster is
      replaced by one of a worker and a ps in this process.

  Raises:
    ValueError: it is neither, this process is another task, or it has no ps.
  """
  if not isinstance(cluster, spec_lib.Cluster):
    if not hasattr(cluster, 'cluster_spec'):
      raise ValueError(
        f'The cluster of a ParameterServerStrategy is {cluster!r}. Give a '
        'tfps.Cluster, or a resolver of tf.distribute.cluster_resolver.'
      )
    return cluster
  if not cluster.jobs:
    cluster = local_pool.LocalCluster(num_workers=1, num_ps=1).cluster
  if cluster.task not in (None, spec_lib.CHIEF):
    raise ValueError(
      f'{cluster.source}: ParameterServerStrategy is for the chief, and this '
      f'process is {cluster.task}. Call tfps.serve in ps and worker tasks, '
      'and tfps.evaluate_checkpoints in an evaluator.'
    )
  cluster.check_has_ps()
  return cluster.resolver()


def with_chief(resolver: Any, address_book: ps_addresses.PsAddressBook) -> Any:
  """Returns a resolver with the chief, whose port is free or this process'.

  TensorFlow would list it as localhost, which other hosts cannot reach, and
  with a new port each time, although the server stays the same.

  Args:
    resolver: the user's resolver.
    address_book: the addresses of the ps.
  """
  jobs = resolver.cluster_spec().as_dict()
  if address_book.moved:
    jobs['ps'] = {ps.index: at for ps, at in address_book.addresses.items()}
  listed = jobs.pop('chief', None)
  others = tf.train.ClusterSpec(jobs)
  current = compat.own_address_beside('chief', others)
  address = listed[0] if listed else current or _free_address(others)
  if not compat.is_own_address('chief', address):
    server_lib.wait_for_port(spec_lib.CHIEF, address)
  if listed and not address_book.moved:
    return resolver
  return resolver_of({**jobs, 'chief': [address]}, resolver)


def resolver_of(jobs: Mapping[str, Any], like: Any) -> Any:
  """Returns a resolver of a cluster.

  Args:
    jobs: the cluster, as for `tf.train.ClusterSpec`.
    like: resolver that has the protocol.
  """
  return tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(jobs), rpc_layer=like.rpc_layer
  )


def _free_address(others: tf.train.ClusterSpec) -> str:
  ps = others.task_address('ps', others.task_indices('ps')[0])
  return f'{topology.own_host_towards(ps)}:{ports.pick()}'
