"""Runs a job on this machine: each task is a process on a free port."""

import argparse
from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
import os
import pathlib
import shlex
import sys
import time

from tfps import errors
from tfps._compat import messages
from tfps._utils import ports
from tfps._utils import signals
from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib
from tfps.launch import secure
from tfps.launch import supervisor as supervisor_lib
from tfps.launch import task_output
from tfps.security import enclosure
from tfps.training import training_end


def start(job: job_lib.Job, options: argparse.Namespace) -> int:
  """Runs a job's tasks on this machine to their end.

  Args:
    job: the job.
    options: the launcher's, see `command`.

  Returns:
    The exit status: 0 when all tasks exited with 0, otherwise that of the
    first task that failed, or 128 + n for signal n.

  Raises:
    ValueError: there are too few GPUs.
  """
  cluster = job_lib.cluster(
    {task: f'localhost:{ports.pick()}' for task in job.tasks()}, 'launch'
  )
  if options.dry_run:
    for task in job.tasks():
      print(by_hand(cluster.with_task(task), job, task_env(job, task)))
    return 0

  def command(
    task: spec_lib.Task, env: Mapping[str, str]
  ) -> supervisor_lib.Command:
    own = {**os.environ, **task_env(job, task), **env}
    return supervisor_lib.Command(
      task, job.command(), own, preload=options.preload
    )

  return supervise(job, options, cluster, command)


def task_env(job: job_lib.Job, task: spec_lib.Task) -> dict[str, str]:
  """Returns what a task's environment has besides this process' own."""
  gpus = job.visible_gpus(task, place=task.index, env=os.environ)
  return {
    **job.added_env(),
    **job.ports_env(task),
    **job.security_env(task),
    **gpus,
  }


def by_hand(
  cluster: spec_lib.Cluster, job: job_lib.Job, env: Mapping[str, str]
) -> str:
  """Returns a shell command that starts the cluster's task, below its name.

  Args:
    cluster: the cluster with the task to start.
    job: the job.
    env: variables to set besides `TF_CONFIG`.
  """
  env = {**env, 'TF_CONFIG': cluster.tf_config()}
  settings = [f'{name}={value}' for name, value in env.items()]
  command = ['env', *settings, *job.command()]
  return f'# {cluster.task}\n{shlex.join(command)}'


def supervise(
  job: job_lib.Job,
  options: argparse.Namespace,
  cluster: spec_lib.Cluster,
  command: Callable[[spec_lib.Task, Mapping[str, str]], supervisor_lib.Command],
) -> int:
  """Runs a command for each task of a job until all have ended.

  Args:
    job: the job.
    options: the launcher's.
    cluster: the addresses of the job's tasks.
    command: returns a task's command; called with the task and what its
      environment has to have.

  Returns:
    The exit status, as `start` does.
  """
  tasks = job.tasks()
  folder = job.log_dir or _fresh_folder()
  output = task_output.TaskOutput(
    tasks,
    folder,
    colour=task_output.wants_colour(sys.stdout, os.environ),
    is_shown=functools.partial(
      messages.is_shown, env={**os.environ, **job.env}
    ),
  )
  end_file = folder.absolute() / 'training_end'
  end_file.unlink(missing_ok=True)  # of an earlier run in the same folder
  # A scheduler may signal all processes, before or after the launcher does.
  env = {signals.REPEATS_VARIABLE: '1'}
  if job.num_evaluators:
    env[training_end.VARIABLE] = str(end_file)
  servers = ('ps', 'worker') if options.chief_ends_job else ('ps',)
  names = ', '.join(map(str, tasks))
  output.say(f'Starting {names}. Their output is kept in {folder}.')
  if job.certificates:
    look = secure.observation(job, cluster)
    output.say(f'To look at them: {look} (or tfps dump)')
  elif job.num_ps:
    address = cluster.address(spec_lib.Task('ps', 0))
    output.say(f'To look at them: tfps top --address={address} (or tfps dump)')
  if (page := job.page()) is not None:
    output.say(f'A page of the job: {_url(job, cluster, page)}')
  served = {task: cluster.address(task) for task in cluster.tasks()}
  security = job.security(job.chief())
  with enclosure.called_through(served, security) as addresses:
    commands = [
      dataclasses.replace(
        command(
          task, {**env, 'TF_CONFIG': cluster.with_task(task).tf_config()}
        ),
        serves=task.job in servers,
        evaluates=task.job == job_lib.EVALUATOR,
        address=addresses.get(task, '') if options.silent_secs else '',
      )
      for task in tasks
    ]
    supervisor = supervisor_lib.Supervisor(
      commands,
      output,
      grace_secs=job.grace_secs,
      max_restarts=job.max_restarts,
      silent_secs=options.silent_secs,
      evaluator_secs=options.evaluator_secs,
      end_file=end_file if job.num_evaluators else None,
    )
    try:
      return supervisor.run()
    except (ImportError, errors.DeadlineError) as error:
      output.say(f'--preload: {error}')
      return 1


def _url(
  job: job_lib.Job, cluster: spec_lib.Cluster, page: tuple[str, int]
) -> str:
  """Returns the URL of the page of a job, and where it is."""
  host, port = page
  chief = job.chief()
  if not port:
    return f'{chief} tells its URL'
  machine = cluster.address(chief).rpartition(':')[0]
  scheme = 'https' if job.certificates else 'http'
  return f'{scheme}://{host}:{port} on {machine}'


def _fresh_folder() -> pathlib.Path:
  return pathlib.Path(time.strftime(f'runs/launch/%Y%m%d-%H%M%S-{os.getpid()}'))
