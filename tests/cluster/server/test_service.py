import threading

from tests.support import waiting
import tfps
from tfps.cluster.spec import Task
from tfps.server import hosted_ps
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages
from tfps.server import registration
from tfps.server import service as service_lib

_PS = Task('ps', 0)
_CHIEF = Task('chief', 0)
_NOBODY = 'localhost:1'


def _say(mailbox, *, done):
  kind = messages.Done if done else messages.Hello
  mailbox.put(kind(_CHIEF, _NOBODY, chief=True).to_json())


class _Running:
  """A service in a thread, which may be met by a hello at its very end."""

  def __init__(self, ps_server, monkeypatch, *, at_the_end=lambda: None):
    cluster = tfps.Cluster({'ps': [ps_server.address], 'worker': {}}, _PS)
    service = service_lib.Service(
      _PS,
      ps_server.address,
      cluster,
      hosted_ps.HostedTasks(lambda task: ''),
      timeout_secs=None,
      grace_secs=1,
    )
    post = mailbox_lib.Mailbox.post

    def post_and_be_met(mailbox, notice, *args):
      post(mailbox, notice, *args)
      self.posted.append(notice)
      if notice == registration.ENDING:
        at_the_end()

    monkeypatch.setattr(mailbox_lib.Mailbox, 'post', post_and_be_met)
    self.posted = []
    self.thread = threading.Thread(target=service.run, daemon=True)
    self.thread.start()


def test_a_service_ends_once_the_chief_is_done(ps_server, mailbox, monkeypatch):
  running = _Running(ps_server, monkeypatch)
  _say(mailbox, done=True)
  running.thread.join(timeout=30)
  assert not running.thread.is_alive()
  assert mailbox.read() == registration.ENDING


def test_a_hello_at_the_very_end_keeps_a_service(
  ps_server, mailbox, monkeypatch
):
  hellos = [lambda: _say(mailbox, done=False)]
  running = _Running(
    ps_server,
    monkeypatch,
    at_the_end=lambda: hellos and hellos.pop()(),
  )
  _say(mailbox, done=True)
  waiting.until(lambda: running.posted.count(registration.ENDING) == 1)
  waiting.until(lambda: mailbox.read() != registration.ENDING)
  assert running.thread.is_alive()
  _say(mailbox, done=True)
  running.thread.join(timeout=30)
  assert not running.thread.is_alive()
