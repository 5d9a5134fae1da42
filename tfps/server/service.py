"""Control loop of a serving task, which handles messages until its end."""

import concurrent.futures
import math
import threading
import time

from tfps._utils import deadlines
from tfps._utils import signals
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import client_registry
from tfps.server import control_messages
from tfps.server import health
from tfps.server import hosted_ps
from tfps.server import joining
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages
from tfps.server import observation
from tfps.server import registration


class Service:
  """Handles messages to a serving task until it may end.

  Args:
    task: of this process.
    address: where its server listens.
    cluster: the specification that lists it.
    hosted_tasks: the tasks that this process hosts.
    timeout_secs: as for `client_registry.ClientRegistry`.
    grace_secs: how long clients may take to release this task.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    address: str,
    cluster: spec_lib.Cluster,
    hosted_tasks: hosted_ps.HostedTasks,
    *,
    timeout_secs: float | None,
    grace_secs: float,
  ) -> None:
    self._task = task
    self._address = address
    self._cluster = cluster
    self._notice = cluster.with_address(task, address).tf_config()
    self._hosted_tasks = hosted_tasks
    self._grace_secs = grace_secs
    self._client_registry = client_registry.ClientRegistry(timeout_secs)
    if spec_lib.CHIEF in cluster.tasks():
      self._client_registry.expect(
        spec_lib.CHIEF, cluster.address(spec_lib.CHIEF)
      )
    self._joining = joining.Joining(task, address, cluster)
    self._is_told = threading.Event()
    # The clients that were asked to release this task and have not answered.
    self._holding: set[spec_lib.Task] = set()

  def run(self) -> client_registry.Verdict:
    """Runs until the task may end; returns why it ends.

    The work is done by another thread, so that this one handles signals.
    """
    verdict: concurrent.futures.Future[client_registry.Verdict]
    verdict = concurrent.futures.Future()

    def listen() -> None:
      try:
        verdict.set_result(self._listen())
      except Exception as error:
        verdict.set_exception(error)

    threading.Thread(target=listen, name='tfps-attend', daemon=True).start()
    # A signal may reach another thread, which does not wake this one.
    deadlines.wait_until(lambda secs: threads.is_done(verdict, secs), None)
    return verdict.result()

  def ask_to_leave(self) -> None:
    """Makes `run` end as soon as clients have released this task."""
    self._is_told.set()

  def _listen(self) -> client_registry.Verdict:
    own = mailbox_lib.Mailbox(self._address, timeout_secs=math.inf)
    with own as mailbox:
      mailbox.post(self._notice)
      signals.tell_user(f'{self._task} is ready at {self._address}.')
      while not self._is_told.wait(timeouts.current().listen_every_secs):
        self._hear(mailbox)
        self._joining.tend(self._client_registry.clients())
        verdict = self._client_registry.verdict()
        if verdict and self._is_the_end(mailbox):
          return verdict
      self._take_leave(mailbox)
    return client_registry.Verdict.DISMISSED

  def _is_the_end(self, mailbox: mailbox_lib.Mailbox) -> bool:
    """Posts that this task ends; returns False if there was a hello before."""
    mailbox.post(registration.ENDING)
    if not self._hear(mailbox):
      return True
    mailbox.post(self._notice)
    return False

  def _take_leave(self, mailbox: mailbox_lib.Mailbox) -> None:
    listening = self._client_registry.listening()
    self._holding = control_messages.ask_to_leave(
      self._task, self._address, listening
    )
    deadline = deadlines.after(self._grace_secs)
    while self._holding and not deadlines.is_over(deadline):
      time.sleep(timeouts.current().listen_every_secs)
      self._hear(mailbox)
      # Clients that have ended need not answer.
      found = health.probe_all({c: listening[c] for c in self._holding})
      self._holding = {s.task for s in found if s.state is health.State.ALIVE}

  def _hear(self, mailbox: mailbox_lib.Mailbox) -> bool:
    """Handles all messages; returns whether there were any."""
    texts = mailbox.take()
    messages.hear(texts, self._handlers(mailbox))
    return bool(texts)

  def _handlers(self, mailbox: mailbox_lib.Mailbox) -> messages.Handlers:
    clients = self._client_registry

    def post_joined() -> None:
      joining.post_joined(mailbox, clients.clients(), self._cluster)

    def hear_hello(hello: messages.Hello) -> None:
      clients.hear_hello(hello)
      post_joined()
      self._joining.note_hello(hello.task, hello.address)

    def hear_done(done: messages.Done) -> None:
      clients.hear_done(done)
      post_joined()

    def observe(request: messages.Observe) -> None:
      answer = observation.answer(
        request, cluster=self._notice, clients=clients.clients()
      )
      mailbox.post(*answer)

    return {
      messages.Hello: hear_hello,
      messages.Done: hear_done,
      messages.MayLeave: lambda answer: self._holding.discard(answer.client),
      messages.Joining: lambda request: control_messages.tell_all(
        request, clients.listening()
      ),
      messages.Host: lambda request: self._hosted_tasks.host(
        request.task, mailbox
      ),
      messages.Observe: observe,
    }
