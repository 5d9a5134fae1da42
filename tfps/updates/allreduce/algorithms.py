"""Algorithms by which workers add up gradients, where they do not fit."""

from collections.abc import Sequence

import tensorflow as tf

from tfps import errors
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor

# TensorFlow's words where NCCL refuses a group, for example as two of its
# workers are on the same GPU. All of them get this error.
_REFUSED = 'NCCL: invalid usage'
_RING = (
  'communication_options=tf.distribute.experimental.CommunicationOptions('
  'implementation='
  'tf.distribute.experimental.CommunicationImplementation.RING)'
)


def disagreement(
  state: generations.State, own: int, peers: Sequence[group_monitor.Peer]
) -> str:
  """Returns why a member cannot add up with the others; empty if it can.

  In a first generation that concerns all members; later, as others have trained
  already, only those whose algorithm is not the group's.

  Args:
    state: the generation.
    own: number of the member.
    peers: all workers.
  """
  if not state.different or not (state.is_first or own in state.different):
    return ''
  named = ', '.join(
    f'{peers[i].task} adds up by {algorithm}'
    for i, algorithm in zip(state.members, state.algorithms, strict=True)
  )
  return (
    f'AllReduceStrategy: {named}. By default a worker that sees a GPU uses '
    f'NCCL. Have all see one, or pass all {_RING}.'
  )


def refusal(error: tf.errors.OpError, peer: group_monitor.Peer) -> str:
  """Returns why NCCL refuses this group for good; empty if it does not.

  Args:
    error: error of a collective.
    peer: this worker.
  """
  if _REFUSED not in str(error):
    return ''
  return (
    f'AllReduceStrategy: {peer.task}: {errors.first_line(error)} NCCL takes '
    'no two workers on one GPU: give each its own by CUDA_VISIBLE_DEVICES, or '
    f'pass all {_RING}.'
  )
