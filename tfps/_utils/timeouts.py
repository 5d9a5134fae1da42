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
  """Periods of the library, and limits of its waits.

  Fields are polls, periods and deadlines. Waits that users choose, such as the
  `timeout_secs` of a strategy, are arguments and not here.
  """

  # Polls: cheap checks, while a thread waits for the result.

  # Between two reads of a variable, file or process of another task; also
  # the first pause, later doubled, between two probes of tasks that start.
  poll_secs: float = 0.05
  # Between two reads within this machine, while training waits.
  short_poll_secs: float = 0.005
  # Minimum between two checks of a lost ps: with replicas it is back at once.
  repair_min_poll_secs: float = 0.03
  # Maximum between two checks of a lost ps: each probes all ps.
  repair_poll_secs: float = 0.2
  # Between two wakes of a waiting thread, so that it handles signals soon.
  wake_secs: float = 0.5

  # Periods: background checks that cost a call to other tasks.

  # Between two reads of a server's mailbox, and of a group's membership table.
  listen_every_secs: float = 0.25
  # Between two looks at the files of a task's certificate and key.
  credentials_every_secs: float = 10.0
  # Between two lookups of a host's address; name services keep one for longer.
  hosts_every_secs: float = 10.0
  # Between two reads of the other workers' membership and input progress.
  peers_every_secs: float = 0.5
  # Between two probes of tasks that something waits for.
  probe_every_secs: float = 1.0
  # Between two probes of a hosted ps' own address. It must answer twice, so
  # that training does not fail back to a ps that has just started.
  fail_back_every_secs: float = 2.0
  # Between two checks whether any client knows this worker, which otherwise
  # asks to join; the chief of its own cluster says hello sooner.
  join_every_secs: float = 3.0
  # Between two notices of a ps to all others while no client knows it.
  home_every_secs: float = 15.0
  # Maximum between two probes of a server's clients; many clients are busy.
  client_probe_every_secs: float = 15.0

  # Deadlines of calls and threads.

  # For the last user of an iterator's handle to let go of it, so that a thread
  # made for that deletes it.
  let_go_secs: float = 10.0
  # For a server to answer a probe; gRPC's own threads take milliseconds.
  probe_secs: float = 2.0
  # For one call to the mailbox or the fence of a server that answers probes.
  call_secs: float = 5.0
  # For all servers of a cluster to get a hello or a fence, and for a process'
  # own server to answer; a server that starts is slow.
  handshake_secs: float = 20.0
  # For a background thread to end once it was stopped, after its current call.
  thread_stop_secs: float = 10.0
  # For the coordinator's repair thread to end, without finishing a repair.
  repair_stop_secs: float = 1.0
  # For a task to start: many import TensorFlow at once on a slow disk.
  start_secs: float = 120.0
  # For a system command, such as mount, to end.
  command_secs: float = 30.0
  # For a port that was just released to be free.
  port_retry_secs: float = 3.0
  # For the rest of the output of a process that has ended; its children may
  # keep the pipe open forever.
  output_drain_secs: float = 5.0
  # For a network file system to show a new file; NFS caches folders.
  file_visible_secs: float = 10.0

  # Deadlines of executions that are under way when something changes.

  # Between two checks of the ps while an execution lasts, and before the first:
  # most executions are shorter.
  stuck_every_secs: float = 5.0
  # Between two probes of the workers that an update waits for, and before the
  # first: most steps are shorter.
  straggler_secs: float = 1.0
  # For executions to end before the runtime's caches of earlier tasks are
  # removed: nearly always milliseconds.
  forget_secs: float = 20.0
  # The same for workers that have returned. Training continues without them, so
  # it is deferred while others execute something.
  forget_worker_secs: float = 2.0
  # For executions to end by themselves once all ps are back, before they are
  # cancelled: most fail at once.
  lost_execution_secs: float = 5.0
  # For a cancelled execution to end: milliseconds, if it can be cancelled.
  cancel_secs: float = 30.0
  # For executions to end before this process connects to a task, or they are
  # cancelled: those of input pipelines take up to a minute.
  pipeline_end_secs: float = 70.0
  # Between two reads of the progress of a lost task's step, until they are
  # equal: updates that it had sent may still be applied for so long.
  step_quiet_secs: float = 0.1
  # For such reads to be equal: several quiet times.
  step_settle_secs: float = 5.0

  # Deadlines of tasks that join, leave and are lost.

  # For a server that answers probes to post its cluster.
  notice_secs: float = 0.2
  # For a server to stop answering once a connection to it has failed.
  loss_visible_secs: float = 1.0
  # For a client that is done to close its connections before servers end.
  linger_secs: float = 2.0
  # For a task that was told to end: a worker's execution, a ps' handover.
  farewell_secs: float = 15.0
  # For a coordinator's cluster to admit a new worker.
  admission_secs: float = 30.0
  # For another ps to host a lost one: empty variables, made within a second.
  failover_secs: float = 5.0
  # For a lost ps to be restarted before another ps hosts it.
  restart_secs: float = 60.0
  # The same where replicas have its values: no reason to wait.
  restart_with_replicas_secs: float = 0.1
  # For a ps that answers to know this process, before it counts as restarted.
  stranger_secs: float = 5.0
  # After which a check of the ps is independent of the one before: checks come
  # every 5 seconds.
  look_memory_secs: float = 15.0
  # After which a failed call is independent of the one before.
  failure_memory_secs: float = 60.0
  # For a group's worker to answer probes before the others exclude it.
  silence_secs: float = 15.0
  # For progress by a worker whose address is unknown, before it counts as
  # lost.
  unknown_worker_secs: float = 60.0
  # After the loss of a task: errors of other tasks may be caused by it.
  consequence_secs: float = 30.0
  # For a marker of the end of training to stay, before an evaluator ends: what
  # trains next would have removed it.
  training_end_secs: float = 30.0
  # For hosts to answer by ssh, before any task is started.
  ssh_secs: float = 25.0
  # For `kubectl apply` to end, and for each of its requests to be answered.
  kubectl_secs: float = 25.0
  kubectl_request_secs: float = 10.0
  # For the end of a task on another machine to be told.
  told_end_secs: float = 5.0
  # For what an engine has killed to end, and for jobs that it is about to end.
  engine_end_secs: float = 20.0
  # Between two exchanges of tasks on Spark, each of which is a barrier.
  spark_every_secs: float = 2.0
  # Between two signs of life of a launcher to the tasks on other machines.
  launcher_beat_secs: float = 5.0
  # For a launcher on another machine to give a sign of life, before its task
  # is stopped.
  launcher_silent_secs: float = 30.0
  # For a browser to send its request to the page, and to take the answer.
  page_client_secs: float = 10.0
  # Of training, by which `tfps trace` finds out how fast it is.
  trace_rate_secs: float = 2.0
  # Between two warnings of a worker that cannot join: it repeats its request.
  warn_every_secs: float = 60.0
  # For training to continue after the last fault of a soak test, and for its
  # chief to end.
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
