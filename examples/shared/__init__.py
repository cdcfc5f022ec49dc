"""What the example programs share.

`options`, `methods`, `results`, `plotting` and `timing` do not import Keras, so
that a program can choose a backend or a number of threads first.
"""
