"""Adapters to the internals of TensorFlow and Keras, without policy.

One module for each thing that is touched. Each use says why it is needed, and
the tests of this package fail when what we rely on changes.
"""
