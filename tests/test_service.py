import threading

from tests import waiting
import tfps
from tfps import _guests
from tfps import _mailbox
from tfps import _service
from tfps import presence
from tfps.cluster.spec import Task

_PS = Task('ps', 0)
_CHIEF = Task('chief', 0)
_NOBODY = 'localhost:1'


def _say(mailbox, *, done):
  message = presence.Message(_CHIEF, _NOBODY, chief=True, done=done)
  mailbox.put(message.to_json())


class _Running:
  """A service in a thread, which may be met by a hello at its very end."""

  def __init__(self, ps_server, monkeypatch, *, at_the_end=lambda: None):
    cluster = tfps.Cluster({'ps': [ps_server.address], 'worker': {}}, _PS)
    service = _service.Service(
      _PS,
      ps_server.address,
      cluster,
      _guests.Guests(lambda task: ''),
      timeout_secs=None,
      grace_secs=1,
    )
    post = _mailbox.Mailbox.post

    def post_and_be_met(mailbox, notice, *args):
      post(mailbox, notice, *args)
      self.posted.append(notice)
      if notice == presence.ENDING:
        at_the_end()

    monkeypatch.setattr(_mailbox.Mailbox, 'post', post_and_be_met)
    self.posted = []
    self.thread = threading.Thread(target=service.run, daemon=True)
    self.thread.start()


def test_a_service_ends_once_the_chief_is_done(ps_server, mailbox, monkeypatch):
  running = _Running(ps_server, monkeypatch)
  _say(mailbox, done=True)
  running.thread.join(timeout=30)
  assert not running.thread.is_alive()
  assert mailbox.read() == presence.ENDING


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
  waiting.until(lambda: running.posted.count(presence.ENDING) == 1)
  waiting.until(lambda: mailbox.read() != presence.ENDING)
  assert running.thread.is_alive()
  _say(mailbox, done=True)
  running.thread.join(timeout=30)
  assert not running.thread.is_alive()
