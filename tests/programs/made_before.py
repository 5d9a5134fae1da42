"""Uses objects that were made before the strategy; prints what comes of it.

Usage: made_before.py STRATEGY: the name of its class.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import tfps


def main(name: str) -> None:
  x = np.arange(32.0, dtype='f').reshape(8, 4)
  dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)
  doubled = dataset.map(lambda x, y: (2 * x, y)).shuffle(8, seed=1).prefetch(1)
  words = tf.data.Dataset.from_tensor_slices(['a', 'b', 'a'])
  generated = tf.data.Dataset.from_generator(
    lambda: iter([1.0]), output_signature=tf.TensorSpec([], tf.float32)
  )
  iterator = iter(words)
  lookup = keras.layers.StringLookup(vocabulary=['a', 'b'], name='lookup')
  looked_up = words.map(lookup)
  space = keras.utils.FeatureSpace({'word': 'string_categorical'})
  space.adapt(words.map(lambda word: {'word': word}))
  normalization = keras.layers.Normalization()
  normalization.adapt(x)
  variable = tf.Variable(1.0, name='old')
  plain, traced = tf.function(lambda: 1.0), tf.function(lambda: 1 + variable)
  assert plain() == 1
  assert traced() == 2
  model = _model()
  model.predict(dataset, verbose=0)

  strategy = getattr(tfps, name)(tfps.Cluster.local())
  with strategy.scope():
    learner = _model()
    embedding = keras.Sequential([keras.layers.Input((1,), dtype='string')])
    embedding.add(lookup)
    embedding.add(keras.layers.Embedding(3, 1))
    embedding.compile('sgd', 'mse')

  for what, use in {
    'dataset': lambda: [int(y[0, 0]) for _, y in dataset],
    'fit': lambda: learner.fit(doubled, validation_data=dataset, verbose=0),
    'mapped': lambda: float(next(iter(dataset.map(lambda x, y: y)))[1, 0]),
    'normalization': lambda: float(
      normalization(x)[0, 0] + normalization(x)[7, 0]
    ),
    'plain function': lambda: float(plain()),
    'variable': variable.numpy,
    'function': traced,
    'iterator': lambda: next(iterator),
    'generator': lambda: next(iter(generated)),
    'lookup': lambda: lookup(tf.constant(['a'])),
    'lookup in a dataset': lambda: next(iter(words.map(lookup))),
    'dataset with lookup': lambda: next(iter(looked_up)),
    'feature space': lambda: words.map(lambda word: space({'word': word})),
    'lookup in a model': lambda: embedding.fit(
      tf.constant([['a']]), np.ones([1, 1]), verbose=0
    ),
    'model.fit': lambda: model.fit(dataset, verbose=0),
    'model.predict': lambda: model.predict(dataset, verbose=0),
  }.items():
    try:
      result = use()
    except tf.errors.InvalidArgumentError as error:
      print(f'{what}: {error}'.replace('\n', ' '), flush=True)
    else:
      shown = 'done' if isinstance(result, keras.callbacks.History) else result
      print(f'{what}: {shown}', flush=True)


def _model() -> keras.Model:
  model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(1, name='dense')]
  )
  model.compile('sgd', 'mse')
  return model


main(sys.argv[1])
