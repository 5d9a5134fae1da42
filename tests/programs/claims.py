"""What the page on between-graph training says, done step by step.

Two workers and two ps; each line printed is what the test looks for.
"""

import keras
import tensorflow as tf

import tfps

strategy = tfps.BetweenGraphStrategy(tfps.resolve_cluster())
with strategy.scope():
  large = tf.Variable(tf.ones([1000]), name='large')
  small = tf.Variable(tf.ones([10]), name='small')
  optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
  optimizer.build([large, small])


def meet(name: str) -> None:
  strategy.barrier(name, 120)


def both_workers_update_what_both_have_read() -> None:
  value = small.read_value()
  meet('both have read')
  small.assign_sub(value * (0.25 if strategy.is_chief else 0.5))
  meet('both have updated')
  print('after two updates', small.numpy()[0], flush=True)
  meet('noted')


def one_worker_reads_between_the_halves_of_an_update() -> None:
  small.assign(tf.zeros([10]))
  large.assign(tf.zeros([1000]))
  meet('zero')
  if strategy.is_chief:
    large.assign_add(tf.ones([1000]))
    meet('half')
    meet('seen')
    small.assign_add(tf.ones([10]))
  else:
    meet('half')
    print('between', large.numpy()[0], small.numpy()[0], flush=True)
    meet('seen')
  meet('whole')
  print('afterwards', large.numpy()[0], small.numpy()[0], flush=True)


@tf.function
def step() -> None:
  strategy.run(train)


def train() -> None:
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(large**2) + tf.reduce_sum(small**2)
  gradients = tape.gradient(loss, [large, small])
  optimizer.apply(gradients, [large, small])


both_workers_update_what_both_have_read()
one_worker_reads_between_the_halves_of_an_update()
step()
print('large is on', large.device, flush=True)
print('small is on', small.device, flush=True)
print('learning rate is on', optimizer._learning_rate.value.device, flush=True)
print('step begins', flush=True)
step()
print('step ends', flush=True)
