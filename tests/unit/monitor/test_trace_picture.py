"""Pictures of traces."""

import gzip
import json

import pytest

from tools import trace_picture

_PS, _WORKER = 0, 1


def _sent(number, ts, *, back=False):
  ends = (_PS, _WORKER) if back else (_WORKER, _PS)
  return [
    {
      'ph': ph,
      'cat': 'transfer',
      'name': 'x',
      'id': number,
      'pid': pid,
      'ts': t,
    }
    for ph, pid, t in zip('sf', ends, (ts, ts + 2), strict=True)
  ]


def _done(name, ts):
  return {'ph': 'X', 'name': name, 'pid': _WORKER, 'tid': 1, 'ts': ts, 'dur': 5}


@pytest.fixture
def trace():
  names = [
    {'ph': 'M', 'name': 'process_name', 'pid': pid, 'args': {'name': name}}
    for pid, name in ((_PS, 'ps:0 on a'), (_WORKER, 'worker:0 on b'))
  ]
  times = (0, 10, 20, 30, 1000, 1010, 1020, 1030)
  sent = [
    event
    for number, ts in enumerate(times)
    for event in _sent(number, ts, back=number % 2 == 1)
  ]
  done = [
    _done('model/dense/MatMul:MatMul', 1005),
    _done('Iterator::Root', 1006),
    _done('Func/while:While', 1006),
    _done('EagerService:RunComponentFunction', 1006),
    _done('ReadVariableOp:ReadVariableOp', 1007),
  ]
  return {'traceEvents': [*names, *sent, *done]}


def test_an_arrow_has_both_ends(trace):
  trace['traceEvents'].remove(_sent(3, 30, back=True)[1])
  arrows = trace_picture.arrows_of(trace)
  assert len(arrows) == 7
  assert arrows[0] == ('worker:0', 'ps:0', 0, 2)
  assert arrows[1] == ('ps:0', 'worker:0', 10, 12)


def test_it_begins_between_two_executions(trace):
  assert trace_picture.beginning(trace_picture.arrows_of(trace)) == 1000


def test_a_trace_without_tensors_has_nothing_to_show():
  with pytest.raises(ValueError, match=r'No tensor was sent .*--steps'):
    trace_picture.beginning([])


def test_operations_and_tensors_are_drawn(trace, tmp_path):
  path = tmp_path / 'trace.json.gz'
  with gzip.open(path, 'wt') as file:
    json.dump(trace, file)
  picture = tmp_path / 'picture.svg'
  assert trace_picture.main([str(path), str(picture), '0.1']) == 0
  drawn = picture.read_text()
  for said in ('ps:0', 'worker:0', 'input', 'a tensor to a ps'):
    assert f'<!-- {said} -->' in drawn
  # Of the operations in that time, one of each kind.
  assert drawn.count('id="PatchCollection_') == 3
  assert drawn.count('clip-path') == 3 + 4  # and a line for each tensor
