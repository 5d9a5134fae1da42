"""Loop over the steps of a function that is being traced."""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import functions
from tfps._compat import writes
from tfps.updates import steppers
from tfps.wire import traffic as traffic_lib
from tfps.wire import transfers


class OutOfScopeError(TypeError):
  """A step uses a tensor of an earlier trace, which has no value any more.

  Args:
    tensor: the tensor.
  """

  def __init__(self, tensor: tf.Tensor) -> None:
    super().__init__(
      f'The step uses {tensor}, which was made when it was traced before and '
      'has no value. Keep what one step leaves to another in a tf.Variable, '
      'not in a Python object.'
    )


@dataclasses.dataclass(frozen=True)
class Form:
  """How a function's steps are laid out in its graph.

  Functions of the same form differ in the number of iterations only, which is
  an argument.

  Attributes:
    body: how many steps the body of the loop has; 0 without a loop.
    rest: how many steps follow the loop.
  """

  body: int
  rest: int

  @classmethod
  def of(cls, num_steps: int, full: int, size: int) -> 'Form':
    """Returns the form of an execution.

    Args:
      num_steps: how many steps it has.
      full: how many steps a full execution has.
      size: how many steps a loop repeats; see `Transfers.loop_size`.
    """
    if full <= size or num_steps < size:
      return cls(0, num_steps)
    return cls(size, num_steps % size)

  @property
  def is_logged(self) -> bool:
    """True if functions of this form log their steps.

    A single step is not: it can only be repeated as a whole, and the write
    would cost it the most.
    """
    return self != ONE_STEP


ONE_STEP = Form(0, 1)


def repeat(
  step: Callable[[Any], tf.Tensor],
  form: Form,
  num_steps: tf.Tensor,
  *,
  own: transfers.Transfers,
  workspace: traffic_lib.Workspace,
  stepper: steppers.Stepper,
  after: Callable[[tf.Tensor | int], Any],
  note_size: Callable[[int], object],
) -> tuple[tf.Tensor, steppers.Stepper]:
  """Traces steps, in a loop if their form has one.

  Args:
    step: traces one step on batches; returns a vector of float64.
    form: how the steps are laid out.
    num_steps: how many there are, an int32 scalar.
    own: transfers values of variables.
    workspace: the workspace of the function that is being traced.
    stepper: logs or synchronizes the steps.
    after: returns the batches after a number of steps.
    note_size: gets the number of operations of a step in a loop.

  Returns:
    The vectors of all steps as one matrix, and the stepper after them.

  Raises:
    OutOfScopeError: a step uses a tensor of an earlier trace.
  """

  def unroll(
    number: int, later: steppers.Stepper, done: tf.Tensor | int
  ) -> list[tf.Tensor]:
    steps = own.steps(workspace, number, later if later.waits else None)
    batches = after(done)
    vectors = []
    for i in range(number):
      first = writes.num_operations()
      with later.step(i + 1), steps.step():
        vectors.append(step(batches))
        if not later.waits:
          writes.put_last(first)
    for tensor in functions.foreign_captures():
      raise OutOfScopeError(tensor)
    return vectors

  if not form.body:
    return tf.stack(unroll(form.rest, stepper, 0)), stepper

  num_loops = num_steps // form.body

  def body(i: tf.Tensor, rows: tf.TensorArray, *state: tf.Tensor) -> Any:
    workspace.repeat(num_loops)
    done = i * form.body
    later = stepper.after(done, *state)
    for k, vector in enumerate(unroll(form.body, later, done)):
      rows = rows.write(done + k, vector)
    graph = tf.compat.v1.get_default_graph()
    note_size(len(graph.get_operations()) // form.body)
    return i + 1, rows, *later.state()

  size = num_loops * form.body
  _, array, *state = tf.while_loop(
    lambda i, *_: i < num_loops,
    body,
    (
      0,
      tf.TensorArray(tf.float64, size, infer_shape=False, element_shape=[None]),
      *stepper.state(),
    ),
    parallel_iterations=1,
  )
  rows, later = array.stack(), stepper.after(size, *state)
  if form.rest:
    last = tf.stack(unroll(form.rest, later, size))
    rows = tf.concat([rows, last], axis=0)
  return rows, later
