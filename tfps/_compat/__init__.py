"""The only code that touches the internals of TensorFlow and Keras.

One module for each thing that is touched. Each use says why it is needed, and
`tests/compat` holds a test that fails when what we rely on changes.
"""
