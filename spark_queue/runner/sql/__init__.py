"""The SQL that files and callers over HTTP send: it is checked as Spark reads it, not as text.

* `tree.py`: the tree of an expression, as Spark's parser returns it.
* `rules.py`: what may be in the tree. All else is refused.
* `sizes.py`: the largest result that an expression may have.
* `compile.py`: from text to a Column, by way of the other three.
"""
