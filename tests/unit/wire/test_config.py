"""What the wire is told."""

import pytest

import tfps


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'prefetch': 3}, 'prefetch is 3. Give 0, 1 or 2'),
    ({'prefetch': -1}, 'prefetch is -1'),
    ({'prefetch': 'yes'}, "prefetch is 'yes'"),
    ({'fuse': False, 'prefetch': 1}, 'fuse is False'),
    ({'fuse': False, 'push': tfps.codecs.Float16()}, 'fuse is False'),
    ({'pull': 'int8'}, "pull is 'int8', which is no codec"),
    ({'push': tfps.codecs.Int8}, 'which is no codec'),
    ({'pull': tfps.codecs.TopK(0.1)}, r'pull is TopK.*Use it as push'),
    ({'pull': tfps.codecs.OneBit()}, 'pull is OneBit'),
    (
      {'pull': tfps.codecs.ErrorFeedback(tfps.codecs.OneBit())},
      'its residual belongs to the gradients',
    ),
  ],
)
def test_what_cannot_work_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    tfps.Wire(**arguments)
