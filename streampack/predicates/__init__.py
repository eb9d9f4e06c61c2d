"""Conditions on the columns of rows, for `where=`."""

from streampack.predicates.predicate import Predicate

__all__ = ["Predicate"]
