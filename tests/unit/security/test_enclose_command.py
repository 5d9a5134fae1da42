"""`tfps enclose`: what it needs, and says where that is missing."""

from tfps.security import enclose_command


def test_a_process_without_a_cluster_is_told(capsys, monkeypatch):
  monkeypatch.delenv('TF_CONFIG', raising=False)
  assert enclose_command.main(['--', 'true']) == 1
  assert 'there is no cluster. Set TF_CONFIG' in capsys.readouterr().err
