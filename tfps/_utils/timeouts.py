"""Periods and deadlines of the library, in one object.

Code reads them where it waits: `timeouts.current().poll_secs`. The environment
variable TFPS_TIMEOUTS_SCALE is a factor of all of them, for a process and those
that it starts: 2 suits a machine on which everything takes twice as long.
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
import os

VARIABLE = 'TFPS_TIMEOUTS_SCALE'


@dataclasses.dataclass(frozen=True)
class Timeouts:
  """How often the library looks at something, and how long it waits.

  Fields are polls, periods and deadlines. Waits that users choose, such as the
  `timeout_secs` of a strategy, are arguments and not here.
  """

  # Polls: looks that cost little, while somebody waits for the result.

  # Between two looks at a variable, file or process of another task; and the
  # first pause, later doubled, between two probes of tasks that start.
  poll_secs: float = 0.05
  # Between two looks within this machine, while training stands still.
  short_poll_secs: float = 0.005
  # Between two looks at a lost ps, at least: one with replicas is back at once.
  repair_min_poll_secs: float = 0.03
  # Between two looks at a lost ps, at most: each probes all ps.
  repair_poll_secs: float = 0.2
  # Between two wakes of a waiting thread, so that it handles signals soon.
  wake_secs: float = 0.5

  # Periods: looks that cost a call to other tasks, and go on in the background.

  # Between two reads of a server's mailbox, and of a group's table of members.
  listen_every_secs: float = 0.25
  # Between two reads of who the other workers are, and how far in the input.
  peers_every_secs: float = 0.5
  # Between two probes of tasks that something waits for.
  probe_every_secs: float = 1.0
  # Between two looks whether a ps that is served elsewhere answers at home; it
  # must answer twice, so as not to go back to one that has just started.
  fail_back_every_secs: float = 2.0
  # Between two looks whether a client knows of this worker, which asks to join
  # if none does; a chief that has it in its cluster says hello sooner.
  join_every_secs: float = 3.0
  # Between two probes of a server's clients, at most; many clients are busy.
  client_probe_every_secs: float = 15.0

  # Deadlines of calls and threads.

  # For a server to answer a probe; gRPC's own threads do it in milliseconds.
  probe_secs: float = 2.0
  # For one call to the mailbox or the fence of a server that answers probes.
  call_secs: float = 5.0
  # For all servers of a cluster to hear a hello or a fence, and for a process'
  # own server to answer it; a server that starts is slow.
  handshake_secs: float = 20.0
  # For a background thread to end that was told to: the call it is at ends.
  thread_stop_secs: float = 10.0
  # For the coordinator's thread of repairs to end: not for a repair to be done.
  repair_stop_secs: float = 1.0
  # For a task to start: many import TensorFlow at once on a slow disk.
  start_secs: float = 120.0
  # For a command of the system, such as mount, to be done.
  command_secs: float = 30.0
  # For a port that was just released to be free.
  port_retry_secs: float = 3.0
  # For the rest of the output of a process that has ended; a process that it
  # left behind may keep the pipe open for ever.
  output_drain_secs: float = 5.0
  # For a network's disk to show a new file, as NFS caches folders for seconds.
  file_visible_secs: float = 10.0

  # Deadlines of executions that are under way when something changes.

  # How long something is executed before ps are looked at, and between two
  # looks: most executions are shorter.
  stuck_every_secs: float = 5.0
  # How long an update waits for workers before these are probed, and between
  # two probes: most steps are shorter.
  straggler_secs: float = 1.0
  # For executions to end before the runtime forgets how tasks were: nearly
  # always milliseconds.
  forget_secs: float = 20.0
  # The same for workers that are back, which training can go on without: where
  # others still execute something, it is put off.
  forget_worker_secs: float = 2.0
  # For executions to end by themselves once all ps are back, before they are
  # cancelled: most fail at once.
  lost_execution_secs: float = 5.0
  # For a cancelled execution to end: milliseconds, unless it cannot be.
  cancel_secs: float = 30.0
  # For executions to end before this process connects to a task, or they are
  # cancelled: those of input pipelines take up to a minute.
  pipeline_end_secs: float = 70.0
  # Between two reads of how far a lost task's step was applied, until they are
  # equal: what it had sent may still be applied for so long.
  step_quiet_secs: float = 0.1
  # For such reads to be equal: several quiet times.
  step_settle_secs: float = 5.0

  # Deadlines of tasks that come, go and are lost.

  # For a server that answers probes to post what it knows of its cluster.
  notice_secs: float = 0.2
  # For a server to stop answering once a connection to it has failed.
  loss_visible_secs: float = 1.0
  # For a client that is done to close its connections before servers end.
  linger_secs: float = 2.0
  # For a task that is told to end: a worker's execution, a ps' hand-over.
  farewell_secs: float = 15.0
  # For a coordinator's cluster to be told of a new worker.
  admission_secs: float = 30.0
  # For another ps to serve a lost one: empty variables, made within a second.
  failover_secs: float = 5.0
  # For a lost ps to be started again before another serves it.
  restart_secs: float = 60.0
  # The same where replicas have its values: nothing speaks for waiting.
  restart_with_replicas_secs: float = 0.1
  # For a ps that answers to know this process, before it counts as restarted.
  stranger_secs: float = 5.0
  # After which a look at ps has nothing to do with the one before: looks come
  # every 5 seconds.
  look_memory_secs: float = 15.0
  # After which a failed call has nothing to do with the one before.
  failure_memory_secs: float = 60.0
  # For a group's worker to answer probes before the others go on without it.
  silence_secs: float = 15.0
  # For progress by a worker whose address is not known, before it counts as
  # lost.
  unknown_worker_secs: float = 60.0
  # Since a task was lost: another's error may come of that for so long.
  consequence_secs: float = 30.0
  # Between two warnings of a worker that cannot join: it asks again and again.
  warn_every_secs: float = 60.0
  # For training to go on after the last fault of a soak test, and for its chief
  # to end.
  fault_recovery_secs: float = 60.0

  def scaled(self, factor: float) -> 'Timeouts':
    """Returns these times multiplied by a factor."""
    times = dataclasses.asdict(self)
    return Timeouts(**{name: factor * secs for name, secs in times.items()})

  @classmethod
  def from_env(cls, env: Mapping[str, str]) -> 'Timeouts':
    """Returns the defaults, scaled by TFPS_TIMEOUTS_SCALE if it is set.

    Raises:
      ValueError: it is not a positive number.
    """
    text = env.get(VARIABLE, '1')
    try:
      factor = float(text)
    except ValueError:
      factor = math.nan
    if not 0 < factor < math.inf:
      raise ValueError(
        f'{VARIABLE}: {text!r} is not a positive number. Set it to a factor '
        'such as 2, or unset it.'
      )
    return cls().scaled(factor)


@functools.cache
def current() -> Timeouts:
  """Returns the times of this process, as of the first call."""
  return Timeouts.from_env(os.environ)
