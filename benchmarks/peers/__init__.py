"""The same training by other frameworks, each in an environment of its own.

Programs of peers import nothing of this repository but what needs NumPy alone.
"""
